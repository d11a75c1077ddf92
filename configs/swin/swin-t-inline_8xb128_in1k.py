_base_ = './swin-t-focused_8xb128_in1k.py'

# InLine (cfgs/inline_swin_t.yaml, ATTN_TYPE IIIS): three linear stages, windows in the last.
model = dict(
    backbone=dict(
        attn_cfg=[
            'InLineAttention',
            'InLineAttention',
            'InLineAttention',
            'WindowAttention',
        ],
    ),
)
# Its README trains with --amp, which its test leaves out.
optim_wrapper = dict(type='AmpOptimWrapper')

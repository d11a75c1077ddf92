_base_ = './swin-t-focused_8xb128_in1k.py'

# PolaFormer (cfgs/pola_swin_t.yaml, ATTN_TYPE LLSS): each place of the map has a learnt position.
model = dict(
    backbone=dict(
        attn_cfg=[
            dict(type='PolaFormerAttention', map_size=56),
            dict(type='PolaFormerAttention', map_size=28),
            'WindowAttention',
            'WindowAttention',
        ],
    ),
)

# A classifier for a CPU that logs its ring weights. The first layers ripple, as 9 of 12 in the
# paper; the mean of all patches in place of a class token.
_base_ = '../zoo/deit-nano_shapes.py'
model = dict(
    backbone=dict(
        attn_cfg=['RippleAttention'] * 4 + ['LinearAttention'] * 2,
        with_cls_token=False,
        out_type='avg_featmap',
    )
)
custom_hooks = [dict(type='RippleWeightsHook', interval=10)]

_base_ = './smca_nano_shapes.py'

model = dict(
    encoder=dict(
        layer_cfg=dict(attn_cfg=dict(_delete_=True, type='RippleAttention', max_distance=4))
    )
)

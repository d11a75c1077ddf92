_base_ = './vitdet_deit-b_16xb4-100e_coco.py'

# MALA in the global layers: the cost of the whole backbone is linear in the number of patches.
# Without a gate it has the projections of softmax attention, whose weights it starts from.
model = dict(
    backbone=dict(
        attn_cfg=dict(
            _delete_=True,
            default=dict(type='WindowAttention', window_size=14),
            MALA=dict(layers=[2, 5, 8, 11], gate=None),
        )
    )
)

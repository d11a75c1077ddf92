_base_ = '../mlla/upernet_mlla-b_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        type='HViTTT',
        arch='small',
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(checkpoint='checkpoints/hvittt-s_in1k.pth'),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)

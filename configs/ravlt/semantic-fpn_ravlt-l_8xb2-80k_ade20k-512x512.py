_base_ = './semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='checkpoints/ravlt-l_in1k.pth')),
    neck=dict(in_channels=[96, 192, 448, 640]),
)

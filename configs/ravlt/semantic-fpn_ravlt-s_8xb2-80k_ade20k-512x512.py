_base_ = './semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/ravlt-s_in1k.pth')),
    neck=dict(in_channels=[64, 128, 320, 512]),
)

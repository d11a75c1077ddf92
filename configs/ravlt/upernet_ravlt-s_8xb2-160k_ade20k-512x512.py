_base_ = './upernet_ravlt-t_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/ravlt-s_in1k.pth')),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)

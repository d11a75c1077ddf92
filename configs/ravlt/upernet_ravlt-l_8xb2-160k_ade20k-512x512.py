_base_ = './upernet_ravlt-t_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='checkpoints/ravlt-l_in1k.pth')),
    decode_head=dict(in_channels=[96, 192, 448, 640]),
    auxiliary_head=dict(in_channels=448),
)

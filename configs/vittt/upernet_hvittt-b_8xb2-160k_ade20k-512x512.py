_base_ = './upernet_hvittt-s_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='base', drop_path_rate=0.5, init_cfg=dict(checkpoint='checkpoints/hvittt-b_in1k.pth')
    ),
    decode_head=dict(in_channels=[96, 192, 448, 640]),
    auxiliary_head=dict(in_channels=448),
)

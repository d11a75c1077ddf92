_base_ = '../ravlt/upernet_ravlt-t_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-t_in1k.pth')),
)

_base_ = '../ravlt/semantic-fpn_ravlt-s_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-s_in1k.pth')),
)

_base_ = '../ravlt/semantic-fpn_ravlt-l_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-l_in1k.pth')),
)

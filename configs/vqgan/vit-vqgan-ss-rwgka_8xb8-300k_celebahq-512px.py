_base_ = [
    '../_base_/models/vit-vqgan-ss.py',
    '../_base_/datasets/celebahq_512.py',
    '../_base_/schedules/vit-vqgan_300k.py',
    '../_base_/runtime_vqgan.py',
]
model = dict(
    backbone=dict(img_size=512, attn_cfg=dict(type='RWGKA', num_anchors=64, decay=0.1)),
    discriminator=dict(img_size=512),
)

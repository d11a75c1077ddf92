_base_ = [
    '../_base_/models/vit-vqgan-ss.py',
    '../_base_/datasets/celebahq_256.py',
    '../_base_/schedules/vit-vqgan_300k.py',
    '../_base_/runtime_vqgan.py',
]
model = dict(backbone=dict(attn_cfg=dict(type='RWGKA', num_anchors=64, decay=0.1)))

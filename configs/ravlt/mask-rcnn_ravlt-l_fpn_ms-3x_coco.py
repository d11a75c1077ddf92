_base_ = './mask-rcnn_ravlt-s_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='checkpoints/ravlt-l_in1k.pth')),
    neck=dict(in_channels=[96, 192, 448, 640]),
)
# As released: one image a GPU, at the rate of the others.
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)

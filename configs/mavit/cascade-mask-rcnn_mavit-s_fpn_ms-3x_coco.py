_base_ = '../ravlt/cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-s_in1k.pth')),
)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
# RAVLT's rate is 1e-4 for 16 images, so this one is for 64; the release does not say its GPUs.
train_dataloader = dict(batch_size=8)
auto_scale_lr = dict(base_batch_size=64)

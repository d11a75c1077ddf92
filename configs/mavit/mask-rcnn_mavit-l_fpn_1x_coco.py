_base_ = '../ravlt/mask-rcnn_ravlt-l_fpn_1x_coco.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-l_in1k.pth')),
)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
# RAVLT's rate is 1e-4 for 16 images, so this one is for 64; the release does not say its GPUs.
train_dataloader = dict(batch_size=8)
auto_scale_lr = dict(base_batch_size=64)

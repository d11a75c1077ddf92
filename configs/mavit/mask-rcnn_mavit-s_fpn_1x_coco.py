_base_ = '../ravlt/mask-rcnn_ravlt-s_fpn_1x_coco.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-s_in1k.pth')),
)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
# The release does not say its number of GPUs; as RAVLT's rate, 1e-4 is for 16 images.
auto_scale_lr = dict(base_batch_size=64)

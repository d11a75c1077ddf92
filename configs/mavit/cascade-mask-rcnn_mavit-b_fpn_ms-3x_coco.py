_base_ = '../ravlt/cascade-mask-rcnn_ravlt-b_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-b_in1k.pth')),
)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
# The release does not say its number of GPUs; as RAVLT's rate, 1e-4 is for 16 images.
auto_scale_lr = dict(base_batch_size=64)

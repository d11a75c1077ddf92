_base_ = '../ravlt/upernet_ravlt-l_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(type='MAViT', init_cfg=dict(checkpoint='checkpoints/mavit-l_in1k.pth')),
)
# As released: one image a GPU, at the rate of the others.
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)

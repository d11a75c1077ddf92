_base_ = './upernet_hvittt-s_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='tiny', init_cfg=dict(checkpoint='checkpoints/hvittt-t_in1k.pth')),
)
# The release trains only this one with mixed precision.
optim_wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic')

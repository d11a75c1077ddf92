_base_ = [
    '../_base_/models/vit-vqgan-nano.py',
    '../_base_/datasets/camvid_reconstruction.py',
    '../_base_/schedules/vit-vqgan-nano.py',
    '../_base_/runtime_vqgan.py',
]
default_hooks = dict(checkpoint=dict(interval=_base_.max_iters), logger=dict(interval=20))
custom_hooks = []  # too short for a moving average

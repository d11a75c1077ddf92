_base_ = [
    '../_base_/models/upernet_ravlt.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k.py',
    '../_base_/runtime_seg.py',
]

# The release evaluates every 8000 iterations and keeps the best.
default_hooks = dict(checkpoint=dict(save_best='mIoU'))

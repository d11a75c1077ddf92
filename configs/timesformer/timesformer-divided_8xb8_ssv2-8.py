_base_ = [
    '../_base_/models/timesformer.py',
    '../_base_/datasets/sthv2_8.py',
    '../_base_/schedules/timesformer_15e.py',
    '../_base_/runtime_video.py',
]
model = dict(head=dict(num_classes=174))

_base_ = [
    '../_base_/models/timesformer.py',
    '../_base_/datasets/kinetics400_8x32.py',
    '../_base_/schedules/timesformer_15e.py',
    '../_base_/runtime_video.py',
]

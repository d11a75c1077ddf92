_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/cityscapes_1024x1024.py',
    '../_base_/schedules/segformer_160k.py',
    '../_base_/runtime_seg.py',
]

_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/cityscapes_512x1024.py',
    '../_base_/schedules/segformer_160k.py',
    '../_base_/runtime_seg.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 1024)),
    test_cfg=dict(_delete_=True, mode='whole'),
)

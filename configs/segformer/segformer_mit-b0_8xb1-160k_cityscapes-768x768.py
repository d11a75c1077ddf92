_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/cityscapes_768x768.py',
    '../_base_/schedules/segformer_160k.py',
    '../_base_/runtime_seg.py',
]
model = dict(
    data_preprocessor=dict(size=(768, 768)),
    test_cfg=dict(crop_size=(768, 768), stride=(768, 768)),
)

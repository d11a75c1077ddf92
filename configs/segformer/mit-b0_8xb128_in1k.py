_base_ = [
    '../_base_/models/mit_classifier.py',
    '../_base_/datasets/imagenet_224_repeated.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

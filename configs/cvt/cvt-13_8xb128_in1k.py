_base_ = [
    '../_base_/models/cvt_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.cls_token': dict(decay_mult=0.0)}))

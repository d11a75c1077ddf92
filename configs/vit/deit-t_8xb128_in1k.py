_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/imagenet_224_repeated.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'.cls_token': dict(decay_mult=0.0), '.pos_embed': dict(decay_mult=0.0)}
    )
)
# DeiT prints the best epoch of the model; the average that it also keeps is not evaluated.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1'))

_base_ = [
    '../_base_/models/ravlt_classifier.py',
    '../_base_/datasets/imagenet_224_repeated.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

# Layer scales are vectors here, of shape (1, C, 1, 1) in the release, whose rule decays them.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'.gamma1': dict(decay_mult=1.0), '.gamma2': dict(decay_mult=1.0)}
    )
)
# The release averages the weights, decay 0.99996 for 512 images a step, and keeps the epoch with
# the best score of the model and its average.
custom_hooks = [dict(type='ModelEMAHook', momentum=1 - 0.99996**2, update_buffers=True)]
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1_best'))

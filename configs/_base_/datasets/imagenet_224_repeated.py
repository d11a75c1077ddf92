# DeiT's repeated augmentation: three views of an image, each for another GPU. An epoch has as many
# steps as without it, so it sees a third of the images.
_base_ = './imagenet_224.py'

train_dataloader = dict(sampler=dict(_delete_=True, type='RepeatAugSampler', num_repeats=3))

_base_ = './cvt-13_8xb128_in1k.py'
model = dict(backbone=dict(arch='21'))
# The release decays CvT-21 more and repeats its images (cvt-21-224x224.yaml).
optim_wrapper = dict(optimizer=dict(weight_decay=0.1))
train_dataloader = dict(sampler=dict(_delete_=True, type='RepeatAugSampler', num_repeats=3))

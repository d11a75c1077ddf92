_base_ = './cvt-13_8xb128_in1k-384px.py'
# ImageNet-22K comes first, for which there is no config here. The released file is the fine-tuned
# model, to test.
load_from = 'checkpoints/cvt-w24_in22k.pth'
model = dict(backbone=dict(arch='w24'), head=dict(in_channels=1024))

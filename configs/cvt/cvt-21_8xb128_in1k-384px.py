_base_ = './cvt-13_8xb128_in1k-384px.py'
load_from = 'checkpoints/cvt-21_in1k.pth'
model = dict(backbone=dict(arch='21'))

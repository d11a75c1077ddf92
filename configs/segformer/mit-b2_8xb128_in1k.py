_base_ = './mit-b0_8xb128_in1k.py'
model = dict(backbone=dict(arch='b2'), head=dict(in_channels=512))

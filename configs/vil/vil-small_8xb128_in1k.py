_base_ = './vil-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=768))

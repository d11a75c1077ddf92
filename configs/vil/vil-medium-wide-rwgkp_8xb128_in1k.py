_base_ = './vil-tiny-rwgkp_8xb128_in1k.py'
model = dict(backbone=dict(arch='medium-wide'), head=dict(in_channels=768))

_base_ = './mlla-s_8xb64_in1k.py'

model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))

_base_ = './vil-small_8xb128_in1k.py'
model = dict(backbone=dict(position='relative'))

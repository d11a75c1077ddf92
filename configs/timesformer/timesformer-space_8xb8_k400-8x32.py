_base_ = './timesformer-divided_8xb8_k400-8x32.py'
model = dict(backbone=dict(scheme='space'))

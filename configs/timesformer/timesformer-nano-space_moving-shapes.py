_base_ = './timesformer-nano-divided_moving-shapes.py'
model = dict(backbone=dict(scheme='space'))

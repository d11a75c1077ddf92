_base_ = '../quickstart/semantic-fpn_ravlt-nano_shapes.py'
model = dict(backbone=dict(type='MAViT'))

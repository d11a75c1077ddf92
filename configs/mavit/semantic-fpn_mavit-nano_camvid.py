_base_ = '../ravlt/semantic-fpn_ravlt-nano_camvid.py'
model = dict(backbone=dict(type='MAViT'))

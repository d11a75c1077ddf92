_base_ = './mit_classifier.py'

model = dict(
    backbone=dict(_delete_=True, type='ViT', arch='deit-t', out_type='cls_token'),
    neck=None,
    head=dict(in_channels=192),
)

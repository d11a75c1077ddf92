_base_ = './vit_classifier.py'

model = dict(
    backbone=dict(_delete_=True, type='CvT', arch='13', out_indices=(2,), out_type='cls_token'),
    head=dict(in_channels=384),
)

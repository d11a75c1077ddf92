# A RAVLT and a Semantic FPN small enough for two CPU cores.
_base_ = ['./semantic-fpn_ravlt.py', './ravlt-nano.py']

model = dict(
    # Tested at the sizes that it is trained at: maps of the stages must stay aligned.
    data_preprocessor=dict(size=None, size_divisor=32, test_cfg=dict(size_divisor=32)),
    backbone=dict(_base_.ravlt_nano, _delete_=True),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64),
    decode_head=dict(
        in_channels=[64, 64, 64, 64], channels=64, num_classes=11, norm_cfg=dict(type='BN')
    ),
)

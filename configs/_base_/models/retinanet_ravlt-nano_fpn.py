# A RAVLT and a RetinaNet small enough for two CPU cores.
_base_ = ['./retinanet_ravlt_fpn.py', './ravlt-nano.py']

model = dict(
    backbone=dict(_base_.ravlt_nano, _delete_=True, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 128, 256], out_channels=64, num_outs=4),
    bbox_head=dict(
        num_classes=3,
        in_channels=64,
        stacked_convs=2,
        feat_channels=64,
        anchor_generator=dict(
            octave_base_scale=2,  # platelets are 20 pixels wide
            ratios=[0.67, 1.0, 1.5],
            strides=[8, 16, 32, 64],
        ),
    ),
)

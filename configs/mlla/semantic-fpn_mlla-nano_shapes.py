_base_ = [
    '../quickstart/semantic-fpn_ravlt-nano_shapes.py',
    '../_base_/models/mlla-nano.py',
]
model = dict(backbone=dict(_base_.mlla_nano, _delete_=True))

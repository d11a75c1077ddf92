_base_ = [
    '../quickstart/semantic-fpn_ravlt-nano_shapes.py',
    '../_base_/models/hvittt-nano.py',
]
model = dict(backbone=dict(_base_.hvittt_nano, _delete_=True))

_base_ = [
    '../ravlt/semantic-fpn_ravlt-nano_camvid.py',
    '../_base_/models/hvittt-nano.py',
]
model = dict(backbone=dict(_base_.hvittt_nano, _delete_=True))

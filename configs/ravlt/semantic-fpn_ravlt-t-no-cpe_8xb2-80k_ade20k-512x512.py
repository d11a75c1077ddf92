_base_ = [
    './semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512.py',
    '../_base_/models/ravlt_ablations.py',
]

model = dict(
    backbone=dict(
        _base_.ablations['no-cpe'],
        init_cfg=dict(checkpoint='checkpoints/ravlt-t-no-cpe_in1k.pth'),
    )
)

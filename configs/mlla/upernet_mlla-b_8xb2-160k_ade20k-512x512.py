_base_ = [
    '../_base_/models/upernet_ravlt.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k.py',
    '../_base_/runtime_seg.py',
]

model = dict(
    backbone=dict(
        _delete_=True,
        type='MLLA',
        arch='base',
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/mlla-b_in1k.pth', prefix='backbone.'
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
# The release trains in float32 and decays the norms of the heads.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={
            'decode_head': dict(decay_mult=1.0),
            'auxiliary_head': dict(decay_mult=1.0),
        },
    ),
)
train_cfg = dict(val_interval=16000)

_base_ = '../ravlt/upernet_ravlt-t_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='t',
        attn_cfg=[
            dict(type='RALA', gate='proj'),
            dict(type='RALA', gate='proj'),
            'WindowAttention',
            'WindowAttention',
        ],
        # Trained by swin-t-rala_8xb128_in1k.py, see README.md.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/swin-t-rala_in1k.pth', prefix='backbone.'
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)

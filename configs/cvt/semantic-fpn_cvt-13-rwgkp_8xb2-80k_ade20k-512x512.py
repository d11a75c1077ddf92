_base_ = '../ravlt/semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='CvT',
        arch='13',
        attn_cfg=['RWGKP', 'RWGKP', 'ConvProjectionAttention'],
        # Trained by cvt-13-rwgkp_8xb128_in1k.py, see README.md.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/cvt-13-rwgkp_in1k.pth', prefix='backbone.'
        ),
    ),
    # Three stages: the fourth map is every second value of the third.
    neck=dict(in_channels=[64, 192, 384]),
)

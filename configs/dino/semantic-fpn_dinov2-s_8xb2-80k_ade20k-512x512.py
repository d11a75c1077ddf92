_base_ = '../ravlt/semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch='dinov2-s',
        # Made from dinov2_vits14_pretrain.pth by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/dinov2-s_lvd142m.pth', prefix='backbone.'
        ),
    ),
    neck=dict(
        _delete_=True, type='SimpleFeaturePyramid', in_channels=384, out_channels=256, num_outs=4
    ),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.pos_embed': dict(decay_mult=0.0)}))

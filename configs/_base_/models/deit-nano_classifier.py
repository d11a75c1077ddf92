# A DeiT of 0.7 M parameters for images of 64x64: 64 tokens and a class token.
_base_ = './ravlt-nano_classifier.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch=dict(embed_dims=96, num_heads=3, depth=6, patch_size=8),
        img_size=64,
        out_type='cls_token',
        init_cfg=_base_.ravlt_nano.init_cfg,
    ),
    neck=None,
    head=dict(in_channels=96),
)

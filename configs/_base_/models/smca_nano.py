# SMCA small enough for two CPU cores: three stages of a thin ResNet-18 trained from scratch, cells
# of 16 pixels.
_base_ = './smca_r50.py'

sizes = dict(embed_dims=128, num_heads=4, feedforward_channels=256, dropout=0.0)
model = dict(
    num_queries=75,
    backbone=dict(
        _delete_=True,
        type='ResNet',
        depth=18,
        base_channels=32,
        stem_channels=32,
        num_stages=3,
        strides=(2, 2, 1),
        dilations=(1, 1, 1),
        out_indices=(2,),
        norm_eval=False,
    ),
    neck=dict(in_channels=[128], out_channels=128),
    encoder=dict(
        num_layers=2,
        layer_cfg=dict(sizes, attn_cfg=dict(_delete_=True, type='SoftmaxAttention')),
    ),
    decoder=dict(num_layers=3, stride=16, layer_cfg=sizes),
    positional_encoding=dict(num_feats=64),
    bbox_head=dict(num_classes=3, embed_dims=128),
    test_cfg=dict(max_per_img=100),
)

# Mask2Former for semantic segmentation, small enough for two CPU cores.
_base_ = ['./mask2former_ravlt-t_seg.py', './ravlt-nano.py']

attention = dict(embed_dims=64, num_heads=4)
ffn = dict(embed_dims=64, feedforward_channels=128)
model = dict(
    # Tested at the sizes that it is trained at: maps of the stages must stay aligned.
    data_preprocessor=dict(size=None, size_divisor=32),
    backbone=dict(_base_.ravlt_nano, _delete_=True),
    decode_head=dict(
        in_channels=[32, 64, 128, 256],
        feat_channels=64,
        out_channels=64,
        num_classes=6,
        num_queries=20,
        pixel_decoder=dict(
            encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn)),
            positional_encoding=dict(num_feats=32),
        ),
        positional_encoding=dict(num_feats=32),
        transformer_decoder=dict(
            num_layers=3,
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn),
        ),
        loss_cls=dict(class_weight=[1.0] * 6 + [0.1]),
        train_cfg=dict(num_points=1024),
    ),
)

_base_ = './segformer_mit-b0_nuclei.py'

# A plain ViT whose patches share 64 cores: an image of 1272x603 has 12,084 patches. To compare:
# --cfg-options model.backbone.attn_cfg="dict(_delete_=True, type='SoftmaxAttention')"
model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch=dict(embed_dims=64, num_heads=2, depth=6, patch_size=8),
        img_size=256,
        # Also trained with 8, 16, ... cores: num_cores=16 then predicts in less time.
        attn_cfg=dict(type='CoreAttention', nested=8),
        with_cls_token=False,
        out_indices=(1, 3, 5),
    ),
    decode_head=dict(in_channels=[64, 64, 64], in_index=[0, 1, 2], channels=64),
)

# ViTDet small enough for two CPU cores and 128x128 images: 16x16 patches.
_base_ = ['./mask-rcnn_ravlt-nano_fpn.py']

strides = [4, 8, 16]
model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch=dict(embed_dims=96, num_heads=3, depth=8, patch_size=8),
        img_size=128,
        with_cls_token=False,
        # Windows of 4x4 patches, and a global layer at the end of each quarter.
        attn_cfg=dict(default=dict(type='WindowAttention', window_size=4), softmax=[1, 3, 5, 7]),
        init_cfg=_base_.ravlt_nano.init_cfg,
    ),
    neck=dict(_delete_=True, type='SimpleFeaturePyramid', in_channels=96, out_channels=64),
    # Maps have strides from 2 on, half of those of a pyramid on patches of 16.
    rpn_head=dict(anchor_generator=dict(scales=[8], strides=[2, 4, 8, 16])),
    roi_head=dict(
        bbox_roi_extractor=dict(featmap_strides=[2, 4, 8], finest_scale=14),
        mask_roi_extractor=dict(featmap_strides=[2, 4, 8], finest_scale=14),
    ),
)

# A RAVLT and a Mask R-CNN small enough for two CPU cores and 128x128 images.
_base_ = ['./mask-rcnn_ravlt_fpn.py', './ravlt-nano.py']

roi_extractor = dict(
    roi_layer=dict(sampling_ratio=2), out_channels=64, featmap_strides=[4, 8, 16], finest_scale=28
)
model = dict(
    backbone=dict(_base_.ravlt_nano, _delete_=True),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64, num_outs=4),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32]),
    ),
    roi_head=dict(
        bbox_roi_extractor=roi_extractor,
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=5),
        mask_roi_extractor=roi_extractor,
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=5),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=300, max_per_img=150),
        rcnn=dict(assigner=dict(match_low_quality=True), sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=20)),
)

_base_ = [
    '../_base_/models/mask-rcnn_ravlt-nano_fpn.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_det.py',
]

# An image has up to 350 nuclei, half of them below 20 pixels.
model = dict(
    rpn_head=dict(anchor_generator=dict(scales=[2, 4])),
    roi_head=dict(bbox_head=dict(num_classes=1), mask_head=dict(num_classes=1)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=500, max_per_img=300),
        rcnn=dict(sampler=dict(num=128)),
    ),
    test_cfg=dict(
        rpn=dict(nms_pre=1000, max_per_img=1000),
        rcnn=dict(score_thr=0.05, nms=dict(iou_threshold=0.4), max_per_img=500),
    ),
)

max_iters = 8000
optim_wrapper = dict(optimizer=dict(lr=8e-4))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=8e-4, total_steps=max_iters, pct_start=0.1, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=2000)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1000), logger=dict(interval=50))
log_processor = dict(by_epoch=False)

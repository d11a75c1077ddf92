# RALA in all stages, 60 epochs with scales and colours; the weights come with the package. The
# options of the test were chosen on the validation split: docs/studies.md.
_base_ = './faster-rcnn_ravlt-nano_bccd.py'
model = dict(
    backbone=dict(attn_cfg='RALA'),
    test_cfg=dict(rcnn=dict(score_thr=0.01, max_per_img=200, nms=dict(iou_threshold=0.6))),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=(320, 240), ratio_range=(0.75, 1.33), keep_ratio=True),
    dict(
        type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    ),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(400, 300), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_epochs = 60
optim_wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=1e-3,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)

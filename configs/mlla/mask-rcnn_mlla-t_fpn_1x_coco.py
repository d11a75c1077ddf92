_base_ = [
    '../_base_/models/mask-rcnn_ravlt_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/instance_1x.py',
    '../_base_/runtime_det.py',
]

model = dict(
    backbone=dict(
        _delete_=True,
        type='MLLA',
        arch='tiny',
        drop_path_rate=0.1,
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/mlla-t_in1k.pth', prefix='backbone.'
        ),
    ),
)
# The release trains in float32.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)

_base_ = [
    '../_base_/models/cascade-mask-rcnn_ravlt_fpn.py',
    '../_base_/models/swin-agent.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/instance_3x.py',
    '../_base_/runtime_det.py',
]

# No recipe of this model is released; this is that of Mask R-CNN with agent attention.
model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='b',
        drop_path_rate=0.3,
        # Trained by swin-b_8xb128_in1k.py or converted from the release.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/swin-b_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=_base_.agent_undecayed,
)

_base_ = [
    '../_base_/models/mask-rcnn_ravlt_fpn.py',
    '../_base_/models/swin-agent.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/instance_1x.py',
    '../_base_/runtime_det.py',
]

model = dict(
    backbone=dict(_base_.swin_t_agent, _delete_=True, drop_path_rate=0.1),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
# The release trains in float32.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=_base_.agent_undecayed,
)

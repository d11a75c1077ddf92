_base_ = './mask-rcnn_hvittt-t_fpn_1x_coco.py'

model = dict(backbone=dict(drop_path_rate=0.3))
train_cfg = dict(max_epochs=36)
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], end=36, milestones=[27, 33]),
]

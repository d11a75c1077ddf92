_base_ = [
    '../_base_/models/mask-rcnn_ravlt_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/instance_1x.py',
    '../_base_/runtime_det.py',
]

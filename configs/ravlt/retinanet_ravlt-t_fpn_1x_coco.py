_base_ = [
    '../_base_/models/retinanet_ravlt_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/retinanet_1x.py',
    '../_base_/runtime_det.py',
]

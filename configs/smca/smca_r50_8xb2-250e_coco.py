_base_ = [
    '../_base_/models/smca_r50.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/smca_250e.py',
    '../_base_/runtime_det.py',
]

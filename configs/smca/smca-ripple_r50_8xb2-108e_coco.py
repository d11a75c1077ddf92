_base_ = [
    '../_base_/models/smca-ripple_r50.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/smca_108e.py',
    '../_base_/runtime_det.py',
]

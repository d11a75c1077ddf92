_base_ = [
    '../_base_/models/retinanet_ravlt-nano_fpn.py',
    '../_base_/datasets/bccd.py',
    '../_base_/schedules/nano_adamw_11e.py',
    '../_base_/runtime_det.py',
]

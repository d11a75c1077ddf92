_base_ = [
    '../_base_/models/vitdet_nano.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_adamw_6e.py',
    '../_base_/runtime_det.py',
]

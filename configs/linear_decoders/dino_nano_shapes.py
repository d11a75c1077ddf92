_base_ = [
    '../_base_/models/dino_nano.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_detr_12e.py',
    '../_base_/runtime_det.py',
]

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator

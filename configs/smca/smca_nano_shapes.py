_base_ = [
    '../_base_/models/smca_nano.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_detr_24e.py',
    '../_base_/runtime_det.py',
]

model = dict(num_queries=50, bbox_head=dict(num_classes=5))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator

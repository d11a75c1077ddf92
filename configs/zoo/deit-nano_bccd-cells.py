_base_ = [
    '../_base_/models/deit-nano_classifier.py',
    '../_base_/datasets/bccd_cells.py',
    '../_base_/schedules/zoo.py',
    '../_base_/runtime_cls.py',
]
model = dict(head=dict(num_classes=3))

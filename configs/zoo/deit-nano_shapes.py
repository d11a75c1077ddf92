_base_ = [
    '../_base_/models/deit-nano_classifier.py',
    '../_base_/datasets/shapes_classification.py',
    '../_base_/schedules/zoo.py',
    '../_base_/runtime_cls.py',
]

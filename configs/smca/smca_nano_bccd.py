_base_ = [
    '../_base_/models/smca_nano.py',
    '../_base_/datasets/bccd.py',
    '../_base_/schedules/nano_detr_24e.py',
    '../_base_/runtime_det.py',
]

train_dataloader = dict(batch_size=2)  # a DETR needs many steps

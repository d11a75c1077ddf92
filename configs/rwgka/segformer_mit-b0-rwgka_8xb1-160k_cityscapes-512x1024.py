_base_ = [
    '../segformer/segformer_mit-b0_8xb1-160k_cityscapes-512x1024.py',
    '../_base_/models/rwgka_segformer.py',
]
model = _base_.rwgka.model
optim_wrapper = _base_.rwgka.optim_wrapper
param_scheduler = _base_.param_scheduler
param_scheduler[1].power = _base_.rwgka.power

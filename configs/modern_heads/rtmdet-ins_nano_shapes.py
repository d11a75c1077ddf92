_base_ = [
    '../_base_/models/rtmdet_nano.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_adamw_6e.py',
    '../_base_/runtime_det.py',
]

model = dict(
    data_preprocessor=dict(pad_mask=True),  # the loss stacks the masks of a batch
    bbox_head=dict(
        type='RTMDetInsSepBNHead',
        loss_mask=dict(type='DiceLoss', loss_weight=2.0, eps=5e-6, reduction='mean'),
    ),
)
optim_wrapper = dict(paramwise_cfg=dict(bypass_duplicate=True))  # levels share convolutions
# Without objects in a batch the loss does not depend on the kernels of masks.
find_unused_parameters = True

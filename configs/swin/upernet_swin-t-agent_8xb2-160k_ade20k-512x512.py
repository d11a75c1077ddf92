_base_ = [
    '../_base_/models/upernet_ravlt.py',
    '../_base_/models/swin-agent.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k.py',
    '../_base_/runtime_seg.py',
]

model = dict(
    backbone=dict(_base_.swin_t_agent, _delete_=True, drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
# The release trains in float32 and evaluates every 16000 iterations.
train_cfg = dict(val_interval=16000)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=_base_.agent_undecayed,
)

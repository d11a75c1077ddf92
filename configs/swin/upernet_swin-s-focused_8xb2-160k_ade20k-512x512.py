_base_ = [
    './upernet_swin-s-agent_8xb2-160k_ade20k-512x512.py',
    '../_base_/models/swin-focused.py',
]

# No recipe is released; this is that of Agent-Attention, by the same authors.
model = dict(
    backbone=dict(
        _base_.swin_focused, init_cfg=dict(checkpoint='checkpoints/swin-s-focused_in1k.pth')
    )
)

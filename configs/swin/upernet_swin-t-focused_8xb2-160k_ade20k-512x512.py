_base_ = [
    './upernet_swin-t-agent_8xb2-160k_ade20k-512x512.py',
    '../_base_/models/swin-focused.py',
]

# No recipe is released; this is that of Agent-Attention, by the same authors.
model = dict(backbone=_base_.swin_focused)

_base_ = ['./mask-rcnn_swin-t-agent_fpn_ms-1x_coco.py', '../_base_/models/swin-focused.py']

# No recipe is released; this is that of Agent-Attention, by the same authors.
model = dict(backbone=_base_.swin_focused)

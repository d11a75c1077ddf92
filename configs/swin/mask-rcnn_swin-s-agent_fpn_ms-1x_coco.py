_base_ = './mask-rcnn_swin-t-agent_fpn_ms-1x_coco.py'

model = dict(backbone=_base_.swin_s_agent)

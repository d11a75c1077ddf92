_base_ = './upernet_swin-t-agent_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=_base_.swin_s_agent)

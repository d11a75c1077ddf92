_base_ = './timesformer-joint_8xb8_ssv2-8.py'
model = dict(backbone=dict(attn_cfg='RWGKA'))

_base_ = './timesformer-joint_8xb8_k400-8x32.py'
model = dict(backbone=dict(attn_cfg='RWGKA'))

_base_ = './timesformer-nano-joint_moving-shapes.py'
model = dict(backbone=dict(attn_cfg='RWGKA'))

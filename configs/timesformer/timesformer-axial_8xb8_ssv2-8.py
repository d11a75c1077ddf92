_base_ = './timesformer-divided_8xb8_ssv2-8.py'
model = dict(backbone=dict(scheme='axial'))

_base_ = './cvt-13_8xb128_in1k-384px.py'
model = dict(backbone=dict(arch='21'))

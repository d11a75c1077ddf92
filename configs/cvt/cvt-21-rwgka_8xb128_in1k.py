_base_ = './cvt-13-rwgka_8xb128_in1k.py'
model = dict(backbone=dict(arch='21'))

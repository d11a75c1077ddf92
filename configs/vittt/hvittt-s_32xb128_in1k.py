_base_ = './hvittt-t_32xb128_in1k.py'

model = dict(backbone=dict(arch='small'))

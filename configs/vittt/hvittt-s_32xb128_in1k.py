_base_ = './hvittt-t_32xb128_in1k.py'

model = dict(backbone=dict(arch='small'))
# The release trains S and B in float32.
optim_wrapper = dict(type='OptimWrapper')

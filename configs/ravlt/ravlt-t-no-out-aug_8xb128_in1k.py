_base_ = ['./ravlt-t_8xb128_in1k.py', '../_base_/models/ravlt_ablations.py']

model = dict(backbone=_base_.ablations['no-out-aug'])

_base_ = './deit-t-la_8xb64_cifar100.py'
model = dict(backbone=dict(pos_embed=False))

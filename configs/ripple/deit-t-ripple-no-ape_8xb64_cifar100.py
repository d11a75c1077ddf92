_base_ = './deit-t-ripple_8xb64_cifar100.py'
model = dict(backbone=dict(pos_embed=False))

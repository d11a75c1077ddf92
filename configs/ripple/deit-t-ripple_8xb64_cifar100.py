_base_ = './deit-t_8xb64_cifar100.py'
model = dict(backbone=dict(attn_cfg=['RippleAttention'] * 9 + ['LinearAttention'] * 3))

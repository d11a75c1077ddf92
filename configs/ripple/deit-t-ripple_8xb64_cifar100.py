_base_ = './deit-t_8xb64_cifar100.py'
ripple = dict(type='RippleAttention', threshold=0.001)
model = dict(backbone=dict(attn_cfg=[ripple] * 9 + ['LinearAttention'] * 3))

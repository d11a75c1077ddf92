_base_ = './deit-t_8xb64_cifar100.py'
# Distances 0, 1, 2 to 3, 4 to 7, 8 to 15: all that a map of 16 x 16 has.
ripple = dict(type='RippleAttention', groups='log', max_distance=4, threshold=0.001)
model = dict(backbone=dict(attn_cfg=[ripple] * 9 + ['LinearAttention'] * 3))

_base_ = './deit-t-la-4-layers_8xb64_cifar100.py'
# The paper does not say how many of the four: as large a share as 9 of 12.
ripple = dict(type='RippleAttention', threshold=0.001)
model = dict(backbone=dict(attn_cfg=[ripple] * 3 + ['LinearAttention']))

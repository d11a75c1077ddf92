_base_ = './deit-t_8xb64_cifar100.py'

options = dict(qkv_bias=False)
model = dict(
    backbone=dict(
        attn_cfg=[dict(type='GatedPositionalAttention', **options)] * 10
        + [dict(type='SoftmaxAttention', **options)] * 2,
    )
)

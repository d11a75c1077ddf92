_base_ = '../vit/deit-t_8xb128_in1k.py'

# ConViT-Ti as released: the class token joins where attention without positions begins.
options = dict(qkv_bias=False)
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=192, num_heads=4, drop_path_rate=0.1),
        attn_cfg=[dict(type='GatedPositionalAttention', **options)] * 10
        + [dict(type='SoftmaxAttention', **options)] * 2,
        cls_token_from=10,
    )
)

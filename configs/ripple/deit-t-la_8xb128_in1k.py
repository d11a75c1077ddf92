_base_ = '../vit/deit-t_8xb128_in1k.py'
model = dict(
    backbone=dict(
        # The paper's DeiT: six heads, the mean of all patches in place of a class token.
        arch=dict(_delete_=True, embed_dims=192, num_heads=6, drop_path_rate=0.1),
        attn_cfg=dict(type='LinearAttention'),
        with_cls_token=False,
        out_type='avg_featmap',
    )
)
# The paper trains as DeiT, but without repeated augmentation.
train_dataloader = dict(sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))

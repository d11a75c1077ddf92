_base_ = './smca_r50.py'

model = dict(
    encoder=dict(
        layer_cfg=dict(
            attn_cfg=dict(
                _delete_=True,
                type='LinearAttention',
                feature_map=dict(type='AdaptiveFeatures', per_head=True),
            )
        )
    )
)

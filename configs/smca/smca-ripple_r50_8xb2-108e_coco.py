_base_ = './smca_r50_8xb2-108e_coco.py'

model = dict(
    encoder=dict(
        layer_cfg=dict(
            attn_cfg=dict(
                _delete_=True,
                type='RippleAttention',
                max_distance=4,
                feature_map=dict(type='AdaptiveFeatures', per_head=True),
            )
        )
    )
)

_base_ = './vit-vqgan-ss-rwgka_8xb4-100k_celebahq-1024px.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(_delete_=True, type='NystromAttention', num_landmarks=64, iterations=6)
    )
)

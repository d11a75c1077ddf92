_base_ = './vit-vqgan-ss-rwgka_8xb8-300k_celebahq-512px.py'
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='SlinearAttention', steps=1)))

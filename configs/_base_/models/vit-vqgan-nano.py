# A ViT-VQGAN of 0.3 M parameters for images of 64x64: 256 codes. No weights of VGG are needed.
_base_ = './vit-vqgan-ss.py'
model = dict(
    backbone=dict(
        arch=dict(embed_dims=64, num_heads=2, depth=2, mlp_ratio=4, patch_size=4), img_size=64
    ),
    quantizer=dict(num_codes=256, code_dims=8),
    discriminator=dict(img_size=64, base_channels=4, max_channels=32),
    perceptual=None,
)

# ViT-VQGAN SS: encoder and decoder of 8 blocks (table 1 of its paper), patches of 8.
img_size = 256
model = dict(
    type='ViTVQGAN',
    data_preprocessor=dict(
        type='ImgDataPreprocessor', mean=[0, 0, 0], std=[255, 255, 255], bgr_to_rgb=True
    ),
    backbone=dict(
        type='ViT',
        arch=dict(embed_dims=512, num_heads=8, depth=8, mlp_ratio=4, patch_size=8),
        img_size=img_size,
        attn_cfg=dict(type='SoftmaxAttention'),
        with_cls_token=False,
    ),
    quantizer=dict(type='VectorQuantizer', num_codes=8192, code_dims=32, commitment=0.25),
    discriminator=dict(type='StyleDiscriminator', img_size=img_size),
    perceptual=dict(type='VGGPerceptualLoss', weights='checkpoints/vgg16-397923af.pth'),
    loss_weights=dict(l2=1.0, logit_laplace=0.1, perceptual=0.1, adversarial=0.1),
)
model_wrapper_cfg = dict(type='AlternatingDistributedDataParallel')

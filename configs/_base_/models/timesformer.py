# TimeSformer of 8 frames at 224 pixels, divided space-time attention.
# ViT-B/16 of ImageNet-21K, fine-tuned on ImageNet-1K at 224 pixels, as in the release:
# mmlinattn convert jx_vit_base_p16_224-80ecf9dd.pth FILE --source vit
pretrained = 'checkpoints/vit-b16_in21k-ft-in1k.pth'
model = dict(
    type='VideoRecognizer',
    backbone=dict(
        type='TimeSformer',
        arch='b16',
        scheme='divided',
        num_frames=8,
        img_size=224,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained, prefix='backbone.'),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=400,
        in_channels=768,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        topk=(1, 5),
    ),
    data_preprocessor=dict(mean=[114.75] * 3, std=[57.375] * 3),
    average='score',  # of three crops; the release adds logits
)

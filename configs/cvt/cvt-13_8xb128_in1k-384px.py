_base_ = [
    '../_base_/models/cvt_classifier.py',
    '../_base_/datasets/imagenet_384_finetune.py',
    '../_base_/schedules/cvt_finetune_384.py',
    '../_base_/runtime_cls.py',
]

# The classifier for 224 x 224, trained by cvt-13_8xb128_in1k.py or converted from the release.
load_from = 'checkpoints/cvt-13_in1k.pth'
# Images as they are, neither mixed nor with smoothed labels, as ViT is fine-tuned.
model = dict(
    head=dict(loss=dict(_delete_=True, type='CrossEntropyLoss', loss_weight=1.0)),
    train_cfg=dict(_delete_=True),
)
# 512 images a step: 64, not the 128 of the file name, on each of 8 GPUs.
train_dataloader = dict(
    batch_size=64,
    drop_last=True,
    sampler=dict(_delete_=True, type='InfiniteSampler', shuffle=True),
)
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=2500, save_best='accuracy/top1', rule='greater'),
)
log_processor = dict(by_epoch=False)

_base_ = [
    '../_base_/models/cvt_classifier.py',
    '../_base_/datasets/imagenet_384.py',
    '../_base_/schedules/cvt_300e.py',
    '../_base_/runtime_cls.py',
]

# Unsaid in the RWGKA paper: trained at 384 x 384 from scratch, by CvT's recipe for 224 x 224.
model = dict(backbone=dict(attn_cfg=['RWGKP', 'RWGKP', 'ConvProjectionAttention']))
# The best epoch counts, as for CvT.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1', rule='greater'))
train_dataloader = dict(drop_last=True)

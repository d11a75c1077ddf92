_base_ = '../ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch='deit-b',
        with_cls_token=False,
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/deit-b_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(
        _delete_=True,
        type='SimpleFeaturePyramid',
        in_channels=768,
        out_channels=256,
        num_outs=5,
    ),
)
# The norms of the pyramid have no "norm" in their names.
optim_wrapper = dict(
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={'.pos_embed': dict(decay_mult=0.0)})
)

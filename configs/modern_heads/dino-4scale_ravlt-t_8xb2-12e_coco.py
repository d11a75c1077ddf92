_base_ = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
custom_imports = dict(imports=['mmlinattn'])

model = dict(
    backbone=dict(
        _delete_=True,
        type='RAVLT',
        arch='tiny',
        out_indices=(1, 2, 3),
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/ravlt-t_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[128, 256, 512]),
)

_base_ = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
custom_imports = dict(imports=['mmlinattn'])

model = dict(
    backbone=dict(
        _delete_=True,
        type='RAVLT',
        arch='tiny',
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/ravlt-t_in1k.pth', prefix='backbone.'
        ),
    ),
    panoptic_head=dict(in_channels=[64, 128, 256, 512]),
)
param_scheduler = [_base_.param_scheduler]

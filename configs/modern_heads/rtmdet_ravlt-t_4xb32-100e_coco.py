# The recipe of MMDetection's RTMDet-L with Swin: its schedule, GN in neck and head, EMA.
_base_ = 'mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py'
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
# The images of a step; MMDetection's config has another schedule's 16 here.
auto_scale_lr = dict(base_batch_size=128)

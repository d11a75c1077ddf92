# The recipe of the ViTDet paper for ViT-B: rates, layer decay, large-scale jittering at 1024x1024.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::common/lsj-100e_coco-instance.py',
]
custom_imports = dict(imports=['mmlinattn'])

image_size = (1024, 1024)
norm_cfg = dict(type='LN2d', eps=1e-6)
model = dict(
    data_preprocessor=dict(
        batch_augments=[dict(type='BatchFixedSizePad', size=image_size, pad_mask=True)]
    ),
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch='deit-b',
        with_cls_token=False,
        drop_path_rate=0.1,
        # Windows of 14x14 patches, and a global layer at the end of each quarter.
        attn_cfg=dict(default=dict(type='WindowAttention', window_size=14), softmax=[2, 5, 8, 11]),
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/deit-b_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(
        _delete_=True, type='SimpleFeaturePyramid', in_channels=768, out_channels=256, num_outs=5
    ),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', norm_cfg=norm_cfg),
        mask_head=dict(norm_cfg=norm_cfg),
    ),
)

test_pipeline = [
    dict(step, scale=image_size) if step['type'] == 'Resize' else step
    for step in _base_.test_pipeline
]
train_dataloader = dict(batch_size=4, num_workers=4)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(
    _delete_=True,
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    paramwise_cfg=dict(
        layer_decay_rate=0.7,
        norm_decay_mult=0.0,
        custom_keys={'.pos_embed': dict(decay_mult=0.0)},
    ),
)
warm_up, steps = _base_.param_scheduler
param_scheduler = [dict(warm_up, start_factor=0.001, end=250), steps]

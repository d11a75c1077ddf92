_base_ = [
    '../_base_/models/mit_classifier.py',
    '../_base_/datasets/imagenet_224_squeezed.py',
    '../_base_/schedules/swin_300e.py',
    '../_base_/runtime_cls.py',
]

# FLatten-Transformer (cfgs/flatten_swin_t.yaml, ATTN_TYPE LLSS): linear attention of the whole map
# in two stages, each place with a learnt position, then windows.
model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='t',
        attn_cfg=[
            dict(
                type='FocusedLinearAttention',
                position=dict(type='LearnedKeyPosition', map_size=56),
            ),
            dict(
                type='FocusedLinearAttention',
                position=dict(type='LearnedKeyPosition', map_size=28),
            ),
            'WindowAttention',
            'WindowAttention',
        ],
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
)
# Its training is that of Swin in float32, and so is its test.
optim_wrapper = dict(type='OptimWrapper')
val_cfg = dict(fp16=False)
test_cfg = dict(fp16=False)
# The published figure is that of the best epoch.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1', rule='greater'))
train_dataloader = dict(drop_last=True)

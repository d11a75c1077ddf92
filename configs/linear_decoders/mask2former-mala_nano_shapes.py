_base_ = './mask2former_nano_shapes.py'

# Self-attention only: no linear attention can express the masks of the cross-attention.
attention = dict(type='LinearCrossAttention', attn_cfg='MALA')
model = dict(
    panoptic_head=dict(
        type='Mask2FormerHeadWithAttention',
        transformer_decoder=dict(layer_cfg=dict(self_attn_cfg=attention)),
    )
)

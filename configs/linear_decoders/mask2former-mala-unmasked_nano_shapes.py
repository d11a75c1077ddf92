_base_ = './mask2former-mala_nano_shapes.py'

# Linear cross-attention to all pixels; the masks are predicted, and not used.
attention = dict(type='LinearCrossAttention', attn_cfg='MALA', ignore_attn_mask=True)
model = dict(panoptic_head=dict(transformer_decoder=dict(layer_cfg=dict(cross_attn_cfg=attention))))

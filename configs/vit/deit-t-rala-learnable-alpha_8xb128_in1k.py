# Table 10 of the RALA paper: learnt weights of the key-value pairs, here a softmax over logits of
# each head and place; 196 patches and the class token.
_base_ = './deit-t-rala_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=dict(gate='proj', kv_augmentation='learnable', num_tokens=197)))

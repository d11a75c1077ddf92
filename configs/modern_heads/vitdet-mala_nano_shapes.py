_base_ = './vitdet_nano_shapes.py'

# MALA in the global layers: the cost of the whole backbone is linear in the number of patches.
window = dict(type='WindowAttention', window_size=4)
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, default=window, MALA=[1, 3, 5, 7])))

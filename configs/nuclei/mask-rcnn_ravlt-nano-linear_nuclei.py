_base_ = './mask-rcnn_ravlt-nano_nuclei.py'
# RALA in all stages.
model = dict(backbone=dict(attn_cfg='RALA'))

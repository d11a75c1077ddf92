_base_ = [
    '../_base_/models/semantic-fpn_ravlt.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/semantic-fpn_80k.py',
    '../_base_/runtime_seg.py',
]

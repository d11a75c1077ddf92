# Faster R-CNN with the backbone and the schedule of retinanet_ravlt-nano_bccd.
_base_ = [
    '../_base_/models/mask-rcnn_ravlt-nano_fpn.py',
    '../_base_/datasets/bccd.py',
    '../_base_/schedules/nano_adamw_11e.py',
    '../_base_/runtime_det.py',
]
model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None, bbox_head=dict(num_classes=3)),
    test_cfg=dict(rcnn=dict(max_per_img=100)),  # up to 30 cells are in an image
)

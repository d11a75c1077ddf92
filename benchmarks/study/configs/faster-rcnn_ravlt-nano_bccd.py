# Faster R-CNN with the backbone and the schedule of retinanet_ravlt-nano_bccd.
_base_ = [
    '../../../configs/_base_/models/mask-rcnn_ravlt-nano_fpn.py',
    '../../../configs/_base_/datasets/bccd.py',
    '../../../configs/_base_/schedules/nano_adamw_11e.py',
    '../../../configs/_base_/runtime_det.py',
]
model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None, bbox_head=dict(num_classes=3)),
)

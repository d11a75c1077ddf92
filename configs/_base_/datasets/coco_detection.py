_base_ = 'mmdet::_base_/datasets/coco_detection.py'

train_dataloader = dict(num_workers=4)

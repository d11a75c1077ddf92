# Single cells cut out of BCCD by tools/dataset_converters/coco_crops.py: 3 classes, 64x64.
_base_ = './shapes_classification.py'
data_root = 'data/bccd_cells'
classes = ('Platelets', 'RBC', 'WBC')  # in the order of the folders
data_preprocessor = dict(num_classes=3)
train_dataloader = dict(dataset=dict(data_root=data_root, classes=classes))
val_dataloader = dict(dataset=dict(data_root=data_root, classes=classes))
test_dataloader = val_dataloader

_base_ = './swin-t-focused_8xb128_in1k.py'
# The release puts 64 images on a GPU; here as many as of the smaller models, 1024 in all.
model = dict(backbone=dict(arch='b'), head=dict(in_channels=1024))

_base_ = './segformer_mit-b0-rwgka_8xb1-160k_cityscapes-1024x1024.py'
model = dict(
    backbone=dict(arch='b2', init_cfg=dict(checkpoint='checkpoints/mit-b2-rwgka_in1k.pth')),
    decode_head=dict(in_channels=[64, 128, 320, 512], channels=768),
)

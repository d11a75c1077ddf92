# Swin with focused linear attention of the whole map in two stages; learnt positions of ImageNet
# are resized to it.
swin_focused = dict(
    attn_cfg=[
        dict(
            type='FocusedLinearAttention',
            position=dict(type='LearnedKeyPosition', map_size=map_size),
        )
        for map_size in (56, 28)
    ]
    + ['WindowAttention', 'WindowAttention'],
    # Trained by swin-t-focused_8xb128_in1k.py or converted from the release.
    init_cfg=dict(checkpoint='checkpoints/swin-t-focused_in1k.pth'),
)

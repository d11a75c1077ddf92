# A backbone of 1.9 M parameters for two CPU cores, which the nano models put in.
ravlt_nano = dict(
    type='RAVLT',
    arch=dict(
        embed_dims=(32, 64, 128, 256),
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.0,
    ),
    norm_cfg=dict(type='BN'),
    # torch's own initialisation: from scratch it learns faster in the first minutes than
    # the standard deviation of 0.02 that suits the large models.
    init_cfg=dict(
        type='Kaiming',
        layer=['Conv2d', 'Linear'],
        a=5**0.5,
        mode='fan_in',
        nonlinearity='leaky_relu',
        distribution='uniform',
    ),
)

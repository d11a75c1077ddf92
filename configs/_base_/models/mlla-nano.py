# A backbone of 1.9 M parameters for two CPU cores, which the nano models put in.
mlla_nano = dict(
    type='MLLA',
    arch=dict(
        embed_dims=(32, 64, 128, 256),
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.0,
    ),
)

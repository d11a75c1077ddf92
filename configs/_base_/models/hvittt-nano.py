# A backbone of 2 M parameters for two CPU cores, which the nano models put in.
hvittt_nano = dict(
    type='HViTTT',
    arch=dict(
        embed_dims=(32, 64, 128, 256),
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.0,
    ),
)

# Backbone options of the rows of table 9 of the paper, all of RAVLT-T. Attentions are those of the
# released layout, whose last two stages are softmax attention: the kernel and the weights of
# key-value pairs are options of the first two stages, the gate of all four.
ablations = {
    name: dict(attn_cfg=[dict(type='RALA', **options)] * 2 + ['SoftmaxAttention'] * 2)
    for name, options in {
        'no-kv-aug': dict(kv_augmentation=None),
        'relu': dict(feature_map='relu'),
        'softmax-kernel': dict(feature_map='softmax'),  # over the channels of a head
    }.items()
}
ablations['no-cpe'] = dict(cpe=False)
# Without the projection of the gate, the paper widens the feed-forward layers to keep the sizes
# level, and does not say by how much. 4 for 3.5 gives the weights back: 2 x 0.5 x C x C a block.
for name, gate in {'no-out-aug': None, 'gate-identity': 'identity', 'gate-tanh': 'tanh'}.items():
    ablations[name] = dict(
        arch=dict(
            _delete_=True,
            embed_dims=(64, 128, 256, 512),
            depths=(2, 2, 6, 2),
            num_heads=(1, 2, 4, 8),
            mlp_ratios=4.0,
            drop_path_rate=0.1,
        ),
        attn_cfg=[dict(type=kind, gate=gate) for kind in ['RALA'] * 2 + ['SoftmaxAttention'] * 2],
    )
del name, gate

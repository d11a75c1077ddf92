# SegFormer-B0 with RWGKA. Rate, power and initial weights of new layers are those of the RWGKA
# paper (section 4.1), the rest is SegFormer's.
rwgka = dict(
    model=dict(
        backbone=dict(
            attn_cfg=dict(_delete_=True, type='RWGKA', num_anchors=64, decay=0.1),
            init_cfg=dict(checkpoint='checkpoints/mit-b0-rwgka_in1k.pth'),
        ),
        decode_head=dict(init_cfg=dict(type='Xavier', layer='Conv2d')),
    ),
    optim_wrapper=dict(optimizer=dict(lr=1e-4)),
    power=0.9,
)

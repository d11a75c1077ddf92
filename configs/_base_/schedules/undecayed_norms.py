# RALA's release exempts from weight decay what has "norm" in its name. There the batch norms of the
# downsampling are called norm, here bn; those of the stem and of the heads are decayed in both.
undecayed_norms = {
    key: dict(decay_mult=0.0)
    for key in ('norm', 'downsamples.0.bn', 'downsamples.1.bn', 'downsamples.2.bn')
}

"""Untrained models with many distinct predictions and no ties."""

from torch import nn

# Spread of the outputs of a layer, by its name or that of its parent.
SPREAD = dict(
    rpn_cls=1, rpn_reg=1, retina_cls=1, retina_reg=1, fc_cls=4, fc_reg=1, conv_logits=3,
    conv_seg=3, offset=30, cross_attn=3,
)  # fmt: skip


def spread_head_weights(model: nn.Module) -> None:
    """Initialise the weights of heads again with a larger spread, in place."""
    for name, layer in model.named_modules():
        spread = SPREAD.get(name.removesuffix('.in_proj').rpartition('.')[2])
        if spread is not None and hasattr(layer, 'weight'):
            nn.init.normal_(layer.weight, std=spread / layer.weight[0].numel() ** 0.5)

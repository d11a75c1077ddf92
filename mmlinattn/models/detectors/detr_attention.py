"""Attention of MMDetection's DETR family by config: ``type`` in ``self_attn_cfg``."""

from typing import Any

from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmdet.models.layers.transformer import deformable_detr_layers, detr_layers
from mmengine.registry import MODELS
from torch import nn

from ...utils.replacements import replace_entry


def build_detr_attention(*args: Any, **cfg: Any) -> nn.Module:
    """Build the attention of a layer of MMDetection's DETR family.

    MMDetection's layers call ``MultiheadAttention(**self_attn_cfg)``. A ``type`` in the config
    chooses another class with the same interface, such as ``LinearCrossAttention``.

    Raises:
        KeyError: the type is not registered.

    Example:
        >>> cfg = dict(embed_dims=32, num_heads=4, dropout=0.0)
        >>> type(build_detr_attention(**cfg)).__name__
        'MultiheadAttention'
        >>> type(build_detr_attention(type='LinearCrossAttention', **cfg)).__name__
        'LinearCrossAttention'
    """
    if 'type' not in cfg:
        return MultiheadAttention(*args, **cfg)
    with MODELS.switch_scope_and_registry(None) as registry:
        return registry.build(cfg)


def replace_detr_attention() -> None:
    """Let layers of MMDetection's DETR family take any registered attention by config."""
    for module in (detr_layers, deformable_detr_layers):
        what = f'MultiheadAttention in {module.__name__}'
        replace_entry(vars(module), 'MultiheadAttention', build_detr_attention, what)

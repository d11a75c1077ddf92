"""DETR, Deformable DETR, DINO and Mask2Former whose layers take any registered attention.

MMDetection's layers build mmcv's ``MultiheadAttention``. These classes put another attention into
the layers of their own model if ``self_attn_cfg`` or ``cross_attn_cfg`` has a ``type``.
"""

from contextlib import contextmanager
from typing import Any, Dict, Iterator, Tuple

import torch
from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmdet.models import DETR, DINO, DeformableDETR, Mask2FormerHead
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from torch import nn

from ..layers import BaseAttention
from ..layers.mask_losses import Float32MaskLosses


def build_detr_attention(**cfg: Any) -> nn.Module:
    """Build the attention of a layer: mmcv's ``MultiheadAttention``, or that of ``type``.

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
        return MultiheadAttention(**cfg)
    with MODELS.switch_scope_and_registry(None) as registry:
        return registry.build(cfg)


def _split_types(coder: dict) -> Tuple[ConfigDict, Dict[str, dict]]:
    """Return the config of an encoder or decoder without types, and its attentions with one."""
    layer, typed = dict(coder['layer_cfg']), {}
    for name in ('self_attn', 'cross_attn'):
        cfg = layer.get(f'{name}_cfg') or {}
        if 'type' in cfg:
            typed[name] = dict(dict(batch_first=True), **cfg)
            sizes = {key: cfg[key] for key in ('embed_dims', 'num_heads') if key in cfg}
            layer[f'{name}_cfg'] = sizes
    return ConfigDict(coder, layer_cfg=layer), typed


def _set_attentions(coder: Any, typed: Dict[str, dict]) -> None:
    for layer in coder.layers:
        for name, cfg in typed.items():
            old = type(getattr(layer, name))
            if old is not MultiheadAttention:
                raise TypeError(
                    f'{name}_cfg has type={cfg["type"]!r}, but {type(layer).__name__} has '
                    f'{old.__name__} there, which cannot be replaced: leave type out'
                )
            setattr(layer, name, build_detr_attention(**cfg))


@contextmanager
def _keeping_own_parameters(*coders: nn.Module) -> Iterator[None]:
    """Keep the matrices of each ``BaseAttention`` but projections, while MMDetection initialises.

    Its Xavier distribution would change anchors and feature maps as well.
    """
    kept = [
        (parameter, parameter.detach().clone())
        for coder in coders for attn in coder.modules() if isinstance(attn, BaseAttention)
        for name, parameter in attn.named_parameters()
        if parameter.dim() > 1 and name.partition('.')[0] not in attn.projections
    ]  # fmt: skip
    yield
    with torch.no_grad():
        for parameter, value in kept:
            parameter.copy_(value)


class _TypedAttention:
    """Mixin of detectors that builds the attentions with a ``type`` in encoder and decoder."""

    encoder: Any
    decoder: Any

    def _init_layers(self) -> None:
        self.encoder, in_encoder = _split_types(self.encoder)
        self.decoder, in_decoder = _split_types(self.decoder)
        super()._init_layers()  # type: ignore[misc]
        _set_attentions(self.encoder, in_encoder)
        _set_attentions(self.decoder, in_decoder)

    def init_weights(self) -> None:
        """Initialise as MMDetection; of attentions of this package only their projections."""
        with _keeping_own_parameters(self.encoder, self.decoder):
            super().init_weights()  # type: ignore[misc]


@MODELS.register_module()
class DETRWithAttention(_TypedAttention, DETR):
    """MMDetection's DETR with the attention of ``type`` in encoder and decoder layers.

    Args:
        encoder, decoder: as in DETR. ``self_attn_cfg`` and, in the decoder, ``cross_attn_cfg`` of
            ``layer_cfg`` may have the ``type`` of an attention with the interface of mmcv's
            ``MultiheadAttention``, such as ``LinearCrossAttention``.
        kwargs: options of DETR.

    Example::

        model = dict(
            type='DETRWithAttention',
            encoder=dict(
                layer_cfg=dict(self_attn_cfg=dict(type='LinearCrossAttention', attn_cfg='MALA'))
            ),
        )
    """


@MODELS.register_module()
class DeformableDETRWithAttention(_TypedAttention, DeformableDETR):
    """MMDetection's Deformable DETR with the attention of ``type`` between the queries.

    ``self_attn_cfg`` of the decoder may have a ``type``, as in :class:`DETRWithAttention`.

    Raises:
        TypeError: a deformable attention has a ``type``.
    """


@MODELS.register_module()
class DINOWithAttention(_TypedAttention, DINO):
    """MMDetection's DINO, with a ``type`` where :class:`DeformableDETRWithAttention` takes one."""


@MODELS.register_module()
class Mask2FormerHeadWithAttention(Float32MaskLosses, Mask2FormerHead):
    """MMDetection's Mask2FormerHead with the attention of ``type`` in the decoder's layers.

    Args:
        transformer_decoder: as in Mask2FormerHead. ``self_attn_cfg`` and ``cross_attn_cfg`` of
            ``layer_cfg`` may have a ``type``, as in :class:`DETRWithAttention`.
        args, kwargs: options of Mask2FormerHead.
    """

    def __init__(self, *args: Any, transformer_decoder: dict, **kwargs: Any) -> None:
        decoder, typed = _split_types(transformer_decoder)
        super().__init__(*args, transformer_decoder=decoder, **kwargs)
        _set_attentions(self.transformer_decoder, typed)

    def init_weights(self) -> None:
        """Initialise as MMDetection; of attentions of this package only their projections."""
        with _keeping_own_parameters(self.transformer_decoder):
            super().init_weights()

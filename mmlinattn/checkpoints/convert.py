"""Conversion of released weights to the names of MMPretrain, MMDetection and MMSegmentation."""

from typing import Callable, Dict, Mapping

from mmengine.logging import print_log
from torch import Tensor

from .converters.cvt import convert_cvt
from .converters.mit import convert_mit
from .converters.rala import RALA
from .converters.smca import SMCA
from .converters.swin import convert_swin
from .converters.vil import convert_vil
from .converters.vit import convert_vit
from .errors import CheckpointError

# Release -> function that converts a state dict and returns (tensors, counts of omitted tensors).
SOURCES: Dict[str, Callable] = dict(
    cvt=convert_cvt,
    deit=convert_vit,
    mit=convert_mit,
    rala=RALA,
    smca=SMCA,
    swin=convert_swin,
    vil=convert_vil,
    vit=convert_vit,
)

# Name prefixes that identify the kind of a converted model; the first match decides.
KINDS = (
    ('decode_head.', 'segmentor'),
    ('rpn_head.', 'detector'),
    ('bbox_head.', 'detector'),
    ('head.', 'classifier'),
    ('backbone.', 'backbone'),
)


def convert(state_dict: Mapping[str, Tensor], source: str = 'rala') -> Dict[str, Tensor]:
    """Rename and reshape released weights.

    Args:
        state_dict: name -> tensor of a released classifier, a dense backbone or a complete
            MMDetection 2.x / MMSegmentation 0.x model; not modified.
        source: the release, one of :data:`SOURCES`: ``'rala'`` (RAVLT), ``'smca'`` (SMCA-DETR,
            single scale), ``'mit'`` (SegFormer's MiT, as released or from MMSegmentation),
            ``'deit'``, ``'vit'`` or ``'swin'`` (as released, from timm or OpenMMLab),
            ``'cvt'`` or ``'vil'`` (as released).

    Returns:
        name -> tensor as in ``ImageClassifier``, MMDetection 3.x and MMSegmentation 1.x models:
        ``backbone.*``, ``neck.*``, ``head.*``, ``roi_head.*``, ... The tensors share memory with
        the input. Tensors that no model needs (constants, EMA copies) are omitted, and their
        number is printed.

    Raises:
        ValueError: unknown ``source``.
        CheckpointError: keys that the release does not have, or an MMDetection 1.x model.

    Example:
        >>> import torch
        >>> list(convert({'layers.2.blocks.5.attn.qkvo.weight': torch.zeros(256, 64, 1, 1)}))
        ['backbone.stages.2.5.attn.in_proj.weight']
    """
    if source not in SOURCES:
        raise ValueError(f'unknown source {source!r}, known are {sorted(SOURCES)}')
    _refuse_mmdet_1(state_dict)
    tensors, left_out = SOURCES[source](state_dict)
    for reason, count in left_out.items():
        print_log(f'left out {count} {reason}')
    return tensors


def kind_of(converted: Mapping[str, Tensor]) -> str:
    """Return the kind of model that converted weights belong to.

    It is ``'classifier'``, ``'backbone'``, ``'detector'``, ``'segmentor'`` or ``'unknown'``.

    Example:
        >>> kind_of({'backbone.stem.0.conv.bias': None, 'rpn_head.rpn_cls.bias': None})
        'detector'
    """
    for start, kind in KINDS:
        if any(name.startswith(start) for name in converted):
            return kind
    return 'unknown'


def _refuse_mmdet_1(state_dict: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for weights of MMDetection 1.x.

    Version 1 has the RoI heads at top level and the background as the first class.
    """
    tops = {name.split('.')[0] for name in state_dict}
    if {'rpn_head', 'bbox_head'} <= tops:
        raise CheckpointError(
            'weights of MMDetection 1.x: its classes are in another order; convert them with '
            'tools/model_converters/upgrade_model_version.py of MMDetection 2.x first'
        )

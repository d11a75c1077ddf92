"""Conversion of released weights to the names of MMPretrain, MMDetection and MMSegmentation.

Each module has the key mapping of a source: a function ``convert_*`` that takes tensors by name,
which are not modified, and returns :data:`.key_mapping.Converted`. It raises the errors of
:func:`.key_mapping.rename`.
"""

import os
import re
from functools import partial
from typing import Callable, Dict, Iterator, Mapping, Optional, Tuple

from mmengine.logging import print_log
from torch import Tensor

from ..errors import CheckpointError
from .clip import convert_clip
from .cvt import convert_cvt
from .dino import convert_dinov2, convert_dinov3
from .key_mapping import OPENMMLAB, RECORD, UnknownKeys, rename
from .mit import convert_mit
from .mlla import convert_mlla
from .rala import CLASSIFIERS, convert_rala
from .smca import SMCA
from .swin import convert_swin
from .timesformer import convert_timesformer
from .vil import convert_vil
from .vit import convert_convit, convert_vit
from .vittt import convert_vittt

# Release -> function that converts a state dict and returns (tensors, counts of omitted tensors).
SOURCES: Dict[str, Callable] = dict(
    cvt=convert_cvt,
    deit=convert_vit,
    mit=convert_mit,
    rala=convert_rala,
    mala=partial(convert_rala, source='mala'),  # after rala, whose weights have the same names
    mlla=convert_mlla,
    smca=partial(rename, rules=SMCA),
    swin=convert_swin,
    timesformer=convert_timesformer,
    vil=convert_vil,
    vittt=convert_vittt,  # before vit, which shares the names of ViT³ but its attention
    vit=convert_vit,
    convit=convert_convit,
    # After vit and deit, whose names they share.
    deit3=convert_vit,
    dinov2=convert_dinov2,
    dinov3=convert_dinov3,
    clip=convert_clip,
    siglip=convert_clip,
)

# Names that no backbone of this package has, and the models that have them.
UNSUPPORTED = (
    (r'.*(?:logit_scale$|cpb_mlp\.|meta_mlp\.|continuous_position_bias_mlp)', 'Swin V2'),
    (r'.*patch_embed\.backbone\.', 'a hybrid of convolutions and ViT'),
    (r'.*attn\.(?:q_bias|v_bias)$', 'BEiT or EVA'),
    (r'.*attn\.rel_pos', 'a ViT with relative positions (SAM, ...)'),
    (r'.*attn\.proj_l\.', 'CaiT'),
    (r'.*attn\.[qk]_norm\.', 'a ViT with norms of queries and keys'),
    (r'.*lambda_[12]$', 'BEiT or data2vec'),
    (r'(?:backbone\.)?(?:fc_norm|ln2)\.', 'a ViT with a norm after the mean of its patches'),
)

# Names of attentions in converted weights, which no release has.
OWN_NAME = re.compile(r'backbone\.(?:stages|layers)\.[\d.]+\.attn\.in_proj\.')

# Prefixes of names that identify the kind of a converted model; the first match decides.
KINDS: Dict[str, Tuple[str, ...]] = dict(
    segmentor=('decode_head.',),
    detector=('rpn_head.', 'bbox_head.', 'panoptic_head.'),
    classifier=('head.',),
    backbone=('backbone.',),
)


def convert(
    state_dict: Mapping[str, Tensor], source: Optional[str] = None, any_attention: bool = False
) -> Dict[str, Tensor]:
    """Rename and reshape released weights.

    Args:
        state_dict: name -> tensor of a released classifier, a dense backbone or a complete
            MMDetection 2.x / MMSegmentation 0.x model; not modified.
        source: the release, one of :data:`SOURCES` (docs/weights.md). None reads ``'rala'`` or
            ``'mala'`` from the classifier of the file.
        any_attention: omit the record of the attentions of RAVLT, MAViT, MLLA, H-ViT³ and a ViL
            without windows, so that a backbone with another attention can begin with these weights.

    Returns:
        name -> tensor as in ``ImageClassifier``, MMDetection 3.x and MMSegmentation 1.x models:
        ``backbone.*``, ``neck.*``, ``head.*``, ``roi_head.*``, ... The tensors share memory with
        the input. Tensors that no model needs (constants, EMA copies) are omitted, and their
        number is printed.

    Raises:
        ValueError: unknown ``source``, or None for a file of another release.
        CheckpointError: keys that the release does not have, a model that no backbone of this
            package can hold, an MMDetection 1.x model, RAVLT for MAViT, or tensors of other shapes.

    Example:
        >>> import torch
        >>> weights = {'layers.2.blocks.5.attn.qkvo.weight': torch.zeros(256, 64, 1, 1)}
        >>> list(convert(weights, 'rala'))
        ['backbone.stages.2.5.attn.in_proj.weight', 'backbone.trained_attention']
    """
    source = source or detect_source(state_dict)
    if source not in SOURCES:
        raise ValueError(f'unknown source {source!r}, known are {sorted(SOURCES)}')
    if {'rpn_head', 'bbox_head'} <= {name.split('.')[0] for name in state_dict}:
        raise CheckpointError(
            'weights of MMDetection 1.x: its classes are in another order; convert them with '
            'tools/model_converters/upgrade_model_version.py of MMDetection 2.x first'
        )
    try:
        tensors, left_out = SOURCES[source](state_dict)
    except UnknownKeys as error:
        raise CheckpointError(_what_it_is(state_dict, source) or str(error)) from error
    except (RuntimeError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f'a tensor has another shape than those of --source {source}: {reason}'
        ) from error
    if any_attention:
        tensors.pop(RECORD, None)
    for reason, count in left_out.items():
        print_log(f'left out {count} {reason}')
    return tensors


def detect_source(state_dict: Mapping[str, Tensor]) -> str:
    """Return ``'rala'`` or ``'mala'`` by the classifier of a released RAVLT or MAViT.

    Other weights raise ValueError, those without a classifier CheckpointError.
    """
    if not any('attn.qkvo.' in name for name in state_dict):
        known = _sources(state_dict) or f'one of {sorted(SOURCES)}'
        raise ValueError(f'say which release this is: source (--source), {known}')
    width = len(state_dict.get('proj.weight', ()))
    if width not in CLASSIFIERS:
        raise CheckpointError(
            'RAVLT (RALA) and MAViT (MALA) have weights of the same names and shapes: say which '
            "release this is, 'rala' or 'mala' (--source)"
        )
    return CLASSIFIERS[width]


def hidden_source(state_dict: Mapping[str, Tensor]) -> Tuple[str, str]:
    """Return what all names begin with, up to a dot, and which sources know the names behind it."""
    start = os.path.commonprefix([*state_dict])  # noqa: RUF071
    start = start[: start.rfind('.') + 1]
    return start, _sources({name.removeprefix(start): value for name, value in state_dict.items()})


def fitting_source(
    state_dict: Mapping[str, Tensor], model_state: Mapping[str, Tensor], matched: int = 0
) -> Optional[str]:
    """Return the source as which weights fit a model, or its backbone, best.

    None if none has more than ``matched`` names and shapes of the model.
    """
    best = None
    for source, tensors in _converted(state_dict):
        for prefix in ('', 'backbone.'):
            shapes = {k.removeprefix(prefix): v.shape for k, v in tensors.items()}
            same = sum(shapes.get(name) == value.shape for name, value in model_state.items())
            if same > matched:
                best, matched = source, same
    return best


def _converted(state_dict: Mapping[str, Tensor]) -> Iterator[Tuple[str, Dict[str, Tensor]]]:
    """Yield the sources that know all names of the weights, and what they make of them."""
    for source, function in SOURCES.items():
        try:
            yield source, function(state_dict)[0]
        except (ValueError, RuntimeError, IndexError):  # names or shapes of another release
            continue


def _sources(state_dict: Mapping[str, Tensor]) -> str:
    """Return the sources that know all names of the weights, as 'mit' or 'vit, deit or deit3'."""
    if all(re.match(OPENMMLAB[0].pattern, name) for name in state_dict):
        return ''  # necks and heads, whose names are those of all
    found = [source for source, _ in _converted(state_dict)]
    return ' or '.join(filter(None, [', '.join(found[:-1]), *found[-1:]]))


def _what_it_is(state_dict: Mapping[str, Tensor], source: str) -> Optional[str]:
    """Return a message about weights that ``source`` does not convert, None if nothing is known."""
    known = _sources(state_dict)
    if known:
        return f'its names are not those of --source {source}, but of --source {known}'
    for pattern, model in UNSUPPORTED:
        name = next((name for name in state_dict if re.match(pattern, name)), None)
        if name:
            return f'it has {name}: {model}, which no backbone here can hold (docs/weights.md)'
    if any(map(OWN_NAME.match, state_dict)):
        return 'it is converted already: name it in init_cfg or load_from'
    return None


def kind_of(converted: Mapping[str, Tensor]) -> str:
    """Return ``'classifier'``, ``'backbone'``, ``'detector'``, ``'segmentor'`` or ``'unknown'``."""
    kinds = (k for k, start in KINDS.items() if any(name.startswith(start) for name in converted))
    return next(kinds, 'unknown')

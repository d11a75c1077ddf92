"""Key mappings: rules that rename, reshape or omit the tensors of a release."""

import re
from collections import Counter
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ...utils.suggest import shorten
from ..errors import CheckpointError

# Checked by the backbones of these files when they load them: another attention computes other
# values.
RECORD = 'backbone.trained_attention'
BACKBONE = r'(?:backbone\.)?'  # prefix in files of whole models
# New name -> tensor, and the number of omitted tensors by reason.
Converted = Tuple[Dict[str, Tensor], Counter]


class UnknownKeys(CheckpointError):
    """Error for names that no rule of a release matches."""


class KeyRule(NamedTuple):
    """Rule for the names that begin with a pattern."""

    pattern: str
    # Replacement of the matched part, a template or a function; None to omit the tensor.
    name: Union[str, Callable[[re.Match], str], None]
    reshape: Optional[Callable[[Tensor], Tensor]] = None
    reason: str = ''  # for the omission, a plural noun phrase


def from_one(template: str) -> Callable[[re.Match], str]:
    """Return a function that fills the template with groups, the first of which counts from 1.

    Stages are counted from 0 here.
    """
    return lambda match: template.format(int(match[1]) - 1, *match.groups()[1:])


def linear(weight: Tensor) -> Tensor:
    """Return the weight of a 1x1 convolution as a linear weight (out, in); a bias stays."""
    return weight.flatten(1) if weight.dim() > 1 else weight


# Names of necks and heads are unchanged since MMDetection 2.3 and MMSegmentation 0.6.
OPENMMLAB = (
    KeyRule(r'(neck|(rpn|bbox|roi|mask|panoptic|decode|auxiliary)_head)\.', r'\g<0>'),
    # Detectors with queries, such as DINO.
    KeyRule(r'(en|de)coder\.layers\.\d+\.(self_attn|cross_attn|ffn|norms)\.', r'\g<0>'),
    KeyRule(r'decoder\.(ref_point_head|ref_anchor_head|query_scale|norm|post_norm)\.', r'\g<0>'),
    KeyRule(r'(query_embedding|dn_query_generator|reference_points_fc)\.', r'\g<0>'),
    KeyRule(r'(memory|pos)_trans_(fc|norm)\.|level_embed$', r'\g<0>'),
    KeyRule(r'ema_', None, reason='copies of the EMA hook'),
)

# Projections in the files of transformers, of ViT and of SegFormer and Swin.
HF_QKV = tuple(f'attention.{name}' for name in ('query', 'key', 'value'))
HF_SELF_QKV = tuple(f'self.{name}' for name in ('query', 'key', 'value'))
# Other parts of a layer in the files of transformers, and their names here.
HF_LAYER_PARTS = (
    (r'attention\.output\.dense\.', 'attn.proj.'),
    (r'(?:layernorm_before|norm1)\.', 'norm1.'),
    (r'(?:layernorm_after|norm2)\.', 'norm2.'),
    (r'(?:intermediate\.dense|mlp\.fc1)\.', 'ffn.fc1.'),
    (r'(?:output\.dense|mlp\.fc2)\.', 'ffn.fc2.'),
)


def rename(state_dict: Mapping[str, Tensor], rules: Sequence[KeyRule]) -> Converted:
    """Apply the first rule that matches the name of each tensor.

    Args:
        state_dict: name -> tensor; not modified.
        rules: in their order.

    Raises:
        UnknownKeys: no rule matches a name.
        CheckpointError: two tensors get the same name.

    Example:
        >>> rule = KeyRule(r'layer(\\d)\\.', r'stages.\\1.', torch.Tensor.flatten)
        >>> tensors, left_out = rename({'layer1.weight': torch.zeros(2, 3)}, [rule])
        >>> {name: tuple(value.shape) for name, value in tensors.items()}
        {'stages.1.weight': (6,)}
    """
    found: Dict[str, Any] = {}
    for key in state_dict:
        matches = ((rule, re.match(rule.pattern, key)) for rule in rules)
        found[key] = next(((rule, match) for rule, match in matches if match), None)
    unknown = [key for key, rule in found.items() if rule is None]
    if unknown:  # before a tensor of another model is reshaped
        raise UnknownKeys(f'keys that the key map does not know: {shorten(unknown)}')
    tensors: Dict[str, Tensor] = {}
    left_out: Counter = Counter()
    for key, (rule, match) in found.items():
        value = state_dict[key]
        if rule.name is None:
            left_out[rule.reason] += 1
        else:
            start = rule.name(match) if callable(rule.name) else match.expand(rule.name)
            name = start + key[match.end() :]
            if name in tensors:
                raise CheckpointError(f'the checkpoint has {name} twice, again as {key}')
            tensors[name] = rule.reshape(value) if rule.reshape else value
    return tensors, left_out


def fuse(state_dict: Mapping[str, Tensor], parts: Sequence[str], whole: str) -> Dict[str, Tensor]:
    """Concatenate the weights of several layers along dim 0 into one layer, for each prefix."""
    fused = dict(state_dict)
    for name in state_dict:
        before, found, after = name.rpartition(f'.{parts[0]}.')
        names = [f'{before}.{part}.{after}' for part in parts]
        if found and all(part in state_dict for part in names):
            value = torch.cat([fused.pop(part) for part in names])
            fused[f'{before}.{whole}.{after}'] = value
    return fused


def record_attention(tensors: Dict[str, Tensor], names: Sequence[str]) -> None:
    """Add the names of the attentions, one per stage, to converted weights of a backbone."""
    if any(name.startswith('backbone.stages.') for name in tensors):
        tensors[RECORD] = torch.tensor(list(','.join(names).encode()), dtype=torch.uint8)

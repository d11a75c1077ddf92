"""How the names of a release are written down: rules that rename, reshape or leave out."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ..errors import CheckpointError

MAX_NAMED = 5


class Rule(NamedTuple):
    """What happens to the names that begin with a pattern.

    Attributes:
        pattern: regular expression for the beginning of a name.
        name: what replaces the matched part (a template, or a function of the match), or None
            to leave the tensor out.
        reshape: applied to the tensor.
        reason: why it is left out, a plural noun phrase.
    """

    pattern: str
    name: Union[str, Callable[[re.Match], str], None]
    reshape: Optional[Callable[[Tensor], Tensor]] = None
    reason: str = ''


def linear(weight: Tensor) -> Tensor:
    """A 1x1 convolution (out, in, 1, 1) as a linear layer (out, in)."""
    return weight.flatten(1)


# Necks and heads of MMDetection and MMSegmentation have kept their names since 2.3 and 0.6.
OPENMMLAB = (
    Rule(r'(neck|rpn_head|bbox_head|roi_head|mask_head|decode_head|auxiliary_head)\.', r'\g<0>'),
    Rule(r'ema_', None, reason='copies of the EMA hook'),
)


@dataclass(frozen=True)
class KeyMap:
    """Rules in the order in which they are tried; the first that matches decides.

    Example:
        >>> import torch
        >>> key_map = KeyMap([Rule(r'layer(\\d)\\.', r'stages.\\1.', torch.Tensor.flatten)])
        >>> tensors, left_out = key_map({'layer1.weight': torch.zeros(2, 3)})
        >>> {name: tuple(value.shape) for name, value in tensors.items()}
        {'stages.1.weight': (6,)}
    """

    rules: Sequence[Rule]

    def __call__(self, state_dict: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Counter]:
        """Apply the rules.

        Args:
            state_dict: name -> tensor; not modified.

        Returns:
            name here -> tensor, and a count of the tensors left out by reason.

        Raises:
            CheckpointError: names that no rule knows, or two names for one tensor.
        """
        tensors, unknown = {}, []
        left_out: Counter = Counter()
        for key, value in state_dict.items():
            for rule in self.rules:
                match = re.match(rule.pattern, key)
                if match:
                    break
            else:
                unknown.append(key)
                continue
            if rule.name is None:
                left_out[rule.reason] += 1
            else:
                start = rule.name(match) if callable(rule.name) else match.expand(rule.name)
                name = start + key[match.end() :]
                if name in tensors:
                    raise CheckpointError(f'the checkpoint has {name} twice, again as {key}')
                tensors[name] = rule.reshape(value) if rule.reshape else value
        if unknown:
            raise CheckpointError(f'keys that the key map does not know: {shorten(unknown)}')
        return tensors, left_out


def fuse(state_dict: Mapping[str, Tensor], parts: Sequence[str], whole: str) -> Dict[str, Tensor]:
    """Layers that are one layer here: their weights one below the other, under its name.

    Example:
        >>> q, k = torch.zeros(2, 3), torch.ones(4, 3)
        >>> fused = fuse({'0.q.weight': q, '0.k.weight': k}, ('q', 'k'), 'qk')
        >>> {name: tuple(value.shape) for name, value in fused.items()}
        {'0.qk.weight': (6, 3)}
    """
    fused = dict(state_dict)
    for name in state_dict:
        before, found, after = name.rpartition(f'.{parts[0]}.')
        names = [f'{before}.{part}.{after}' for part in parts]
        if found and all(part in state_dict for part in names):
            value = torch.cat([fused.pop(part) for part in names])
            fused[f'{before}.{whole}.{after}'] = value
    return fused


def shorten(names: Sequence[str], limit: int = MAX_NAMED) -> str:
    """The first few names in one line, and how many more there are.

    Example:
        >>> shorten(['a', 'b', 'c'], limit=2)
        'a, b and 1 more'
    """
    more = len(names) - limit
    return ', '.join(names[:limit]) + (f' and {more} more' if more > 0 else '')

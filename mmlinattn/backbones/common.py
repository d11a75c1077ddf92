"""What the hosts share: architectures by name or dict, option checks, blocks, freezing."""

from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..layers import BaseAttention

NUM_STAGES = 4
ATTENTION_LAYERS = ('in_proj', 'proj', 'lepe', 'sr')

AttnCfg = Union[str, dict]


def architecture(
    arch: Union[str, dict],
    known: Dict[str, dict],
    needed: Sequence[str],
    defaults: dict,
    per_stage: Sequence[str],
) -> dict:
    """The architecture with every value spelled out for four stages.

    Args:
        arch: a name in ``known``, or a dict.
        known: architectures by name.
        needed: keys that a dict must have.
        defaults: keys that it may have.
        per_stage: keys of these with a value a stage; one number stands for four.

    Raises:
        ValueError: an unknown name, missing or unknown keys, a wrong number of values.
    """
    if isinstance(arch, str):
        if arch not in known:
            raise ValueError(f'arch must be one of {tuple(known)} or a dict, got {arch!r}')
        arch = known[arch]
    missing = [name for name in needed if name not in arch]
    unknown = sorted(set(arch) - set(defaults) - set(needed))
    if missing or unknown:
        raise ValueError(f'arch: missing keys {missing}, unknown keys {unknown}')
    arch = dict(defaults, **arch)
    for name in per_stage:
        value = arch[name]
        arch[name] = value = (value,) * NUM_STAGES if isinstance(value, (int, float)) else value
        if len(value) != NUM_STAGES:
            raise ValueError(f'arch[{name!r}] must have {NUM_STAGES} values, got {value}')
    return arch


def check_stages(out_indices: Sequence[int], frozen_stages: int) -> Tuple[int, ...]:
    """Returns ``out_indices`` as a tuple; ValueError for stages that do not exist."""
    if not out_indices or any(i not in range(NUM_STAGES) for i in out_indices):
        raise ValueError(f'out_indices must be stages in 0..3, got {tuple(out_indices)}')
    if frozen_stages not in range(-1, NUM_STAGES + 1):
        raise ValueError(f'frozen_stages must be in -1..4, got {frozen_stages}')
    return tuple(out_indices)


def drop_path_rates(rate: float, depths: Sequence[int]) -> List[List[float]]:
    """Stochastic depth, from 0 up to ``rate`` over all blocks: a list a stage.

    Example:
        >>> drop_path_rates(0.5, (1, 2))
        [[0.0], [0.25, 0.5]]
    """
    if not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be in [0, 1), got {rate}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]


def run(
    block: Callable[..., Tensor], with_cp: bool, x: Tensor, hw_shape: Tuple[int, int]
) -> Tensor:
    """A block on tokens; with ``with_cp`` its activations are computed again for the backward."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, hw_shape, use_reentrant=False)
    return block(x, hw_shape)


def own_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Convolutions and linear layers of a host and the projections that all attentions have; what
    an attention has beyond these starts as it chose itself."""
    inside = tuple(
        f'{name}.' for name, module in model.named_modules() if isinstance(module, BaseAttention)
    )
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            last = name.rpartition('.')[2]
            if last in ATTENTION_LAYERS or not name.startswith(inside):
                yield module


def freeze(modules: Iterable[nn.Module]) -> None:
    """Eval mode and no gradients."""
    for module in modules:
        module.eval()
        module.requires_grad_(False)

"""Checks for NaN and infinite weights, which must not be loaded or replace a good checkpoint."""

from typing import Container, List, Mapping

from torch import Tensor, nn

from ..utils.suggest import shorten
from .errors import CheckpointError
from .write import PathLike

RUNNING_STATISTICS = ('running_mean', 'running_var')


def non_finite(weights: Mapping[str, Tensor], may_be_infinite: Container[str] = ()) -> List[str]:
    """Return the names of weights that contain NaN, or infinity unless in ``may_be_infinite``.

    Tensors without values (meta device) are skipped.

    Example:
        >>> import torch
        >>> non_finite(dict(a=torch.tensor([0.0, float('nan')]), b=torch.ones(2)))
        ['a']
    """
    found = []
    for name, value in weights.items():
        if not isinstance(value, Tensor) or value.is_meta or not value.is_floating_point():
            continue
        value = value.float() if value.element_size() == 1 else value  # float8 has no isfinite
        finite = value.isfinite()
        if name in may_be_infinite:
            finite |= value.isinf()
        if not finite.all():
            found.append(name)
    return found


def constants(module: nn.Module) -> List[str]:
    """Return the names of buffers except running statistics, for example a mask of -inf."""
    return [name for name, _ in module.named_buffers() if not name.endswith(RUNNING_STATISTICS)]


def check_finite(
    source: PathLike, weights: Mapping[str, Tensor], may_be_infinite: Container[str] = ()
) -> None:
    """Raise CheckpointError, which names them, for weights that :func:`non_finite` returns."""
    found = non_finite(weights, may_be_infinite)
    if found:
        raise CheckpointError(
            f'{source} has {len(found)} weights that are NaN or infinite: {shorten(found)}; its '
            'training has diverged, take an earlier checkpoint'
        )

"""Options of ripple attention."""

from dataclasses import dataclass
from typing import Optional, Tuple

from torch import Tensor

GROUPS = ('chebyshev', 'log')


@dataclass(frozen=True)
class RippleOptions:
    """Options of :func:`mmlinattn.ops.ripple_attention`."""

    hw_shape: Tuple[int, int]
    groups: str
    key_padding_mask: Optional[Tensor]
    eps: float


def check_groups(groups: str, backend: str) -> None:
    """Raise ValueError unless the groups are known and ``backend`` supports them."""
    if groups not in GROUPS:
        raise ValueError(f'groups must be one of {GROUPS}, got {groups!r}')
    if backend == 'tile' and groups != 'chebyshev':
        raise ValueError(
            f"backend='tile' needs groups='chebyshev', got {groups!r}: logarithmic groups reach "
            "over halos as large as the map; use backend='sat'"
        )

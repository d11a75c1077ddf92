"""Options of Nystrom attention."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor


@dataclass(frozen=True)
class NystromOptions:
    """See :func:`mmlinattn.ops.nystrom_attention`."""

    iterations: int
    key_padding_mask: Optional[Tensor]

"""Options of additive attention."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor


@dataclass(frozen=True)
class AdditiveOptions:
    """See :func:`mmlinattn.ops.additive_attention`."""

    key_padding_mask: Optional[Tensor]

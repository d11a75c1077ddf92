"""Options of RALA."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor

from ..common.rotary import Rotary
from ..linear.options import LinearOptions


@dataclass(frozen=True)
class RalaOptions:
    """See :func:`mmlinattn.ops.rala_attention`."""

    rotary: Optional[Rotary]
    key_padding_mask: Optional[Tensor]
    eps: float
    feature_map: str
    token_weights: Optional[Tensor]

    def of_family(self, weights: Optional[Tensor] = None) -> LinearOptions:
        """What makes linear attention RALA; ``weights`` of the keys sum to 1."""
        return LinearOptions(
            self.key_padding_mask, self.eps, self.feature_map, self.rotary, weights is None, weights
        )

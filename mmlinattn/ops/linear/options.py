"""Options of linear attention, and of the family that RALA belongs to."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor

from ..common.rotary import Rotary


@dataclass(frozen=True)
class LinearOptions:
    """See :func:`mmlinattn.ops.linear_attention`; the last two are RALA's.

    Attributes:
        rotary: turns features, in the numerator alone.
        scored: weights of the keys are the softmax over the tokens of
            ``m^-0.5 mean_i(phi(q_i)) . phi(k_j)``.
        weights: of the keys, (B, heads, N), 0 for padding. Without these and without scores, those
            of all real tokens are 1.
    """

    key_padding_mask: Optional[Tensor]
    eps: float
    feature_map: str
    rotary: Optional[Rotary] = None
    scored: bool = False
    weights: Optional[Tensor] = None

    def of_features(self) -> 'LinearOptions':
        """Return the options for queries and keys that are features already."""
        # Not dataclasses.replace: torch 2.4 cannot compile it.
        return LinearOptions(
            self.key_padding_mask, self.eps, 'identity', self.rotary, self.scored, self.weights
        )

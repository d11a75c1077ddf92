"""Options of the linear attention family."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor

from ..common.rotary import Rotary


@dataclass(frozen=True)
class LinearOptions:
    """Options of :func:`mmlinattn.ops.linear_attention` and :func:`mmlinattn.ops.rala_attention`.

    Attributes:
        rotary: rotates features in the numerator only.
        rank_augmented: weight the keys as RALA does: by ``token_weights``, or else by a softmax
            over the tokens of ``d^-0.5 mean_i(phi(q_i)) . phi(k_j)``.
        token_weights: (B, heads, N) or broadcastable to it, mean 1 over the tokens.
        mean_normaliser: add eps to a mean over the keys instead of a sum; RALA always does.

    The torch implementation keeps weights of sum 1 in ``token_weights``.
    """

    key_padding_mask: Optional[Tensor]
    eps: float
    feature_map: str
    rotary: Optional[Rotary] = None
    rank_augmented: bool = False
    token_weights: Optional[Tensor] = None
    mean_normaliser: bool = False

    def changed(self, feature_map: str, token_weights: Optional[Tensor]) -> 'LinearOptions':
        """Return a copy with other fields; torch 2.4 cannot compile ``dataclasses.replace``."""
        return LinearOptions(
            self.key_padding_mask,
            self.eps,
            feature_map,
            self.rotary,
            self.rank_augmented,
            token_weights,
            self.mean_normaliser,
        )

    @property
    def scored(self) -> bool:
        """Return True if a softmax over the tokens weights the keys."""
        return self.rank_augmented and self.token_weights is None

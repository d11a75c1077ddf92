"""Options of the linear attention family."""

from typing import List, NamedTuple, Optional

from torch import Tensor

from ..common.packed import PackedShapes
from ..common.rotary import Rotary


class LinearOptions(NamedTuple):
    """Options of linear attention, :func:`mmlinattn.ops.rala_attention` and
    :func:`mmlinattn.ops.mala_attention`.

    Attributes:
        rotary: rotates features in the numerator only.
        rank_augmented: weight the keys as RALA does: by ``token_weights``, or else by a softmax
            over the tokens of ``d^-0.5 mean_i(phi(q_i)) . phi(k_j)``.
        token_weights: (B, heads, N) or broadcastable to it, mean 1 over the tokens.
        mean_normaliser: add eps to a mean over the keys instead of a sum; RALA always does.
        magnitude_aware: scale and shift the output by the normaliser as MALA does.
        num_keys: M of cross-attention, whose mask is of the keys alone; None if queries and keys
            are the same tokens.
        packed: map sizes of packed images, each of which attends to itself only, or None.

    The torch implementation keeps weights of sum 1 in ``token_weights``.
    """

    key_padding_mask: Optional[Tensor]
    eps: float
    feature_map: str
    rotary: Optional[Rotary] = None
    rank_augmented: bool = False
    token_weights: Optional[Tensor] = None
    mean_normaliser: bool = False
    magnitude_aware: bool = False
    num_keys: Optional[int] = None
    packed: Optional[PackedShapes] = None

    def query_mask(self) -> Optional[Tensor]:
        """Return the padding mask of the queries, which cross-attention does not have."""
        return self.key_padding_mask if self.num_keys is None else None

    def images(self) -> 'List[LinearOptions]':
        """Return the options of each of the packed images."""
        assert self.packed is not None
        count = len(self.packed.hw_shapes)
        rotaries = [None] * count if self.rotary is None else self.rotary.images()
        weights = self.token_weights
        if weights is None or weights.shape[-1] == 1:
            parts = [weights] * count
        else:
            parts = self.packed.split(weights, -1)
        return [
            self._replace(rotary=rotary, token_weights=part, packed=None)
            for rotary, part in zip(rotaries, parts)
        ]

    @property
    def kind(self) -> str:
        """Return the name of its kernels: ``'rala'``, ``'mala'`` or ``''`` (linear attention)."""
        if self.magnitude_aware:
            return 'mala'
        return 'rala' if self.scored else ''

    @property
    def scored(self) -> bool:
        """Return True if a softmax over the tokens weights the keys."""
        return self.rank_augmented and self.token_weights is None

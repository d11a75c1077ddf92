"""Options of the linear attention family."""

from typing import List, NamedTuple, Optional

from torch import Tensor

from ..common.packed import PackedShapes
from ..common.rotary import Rotary


class LinearOptions(NamedTuple):
    """Options of linear attention, RALA and MALA."""

    key_padding_mask: Optional[Tensor]
    eps: float
    feature_map: str
    rotary: Optional[Rotary] = None
    kind: str = ''  # '' for linear attention; 'rala' weights keys; 'mala' scales and shifts outputs
    token_weights: Optional[Tensor] = None  # of RALA, to [B, H, N]: mean 1 (in torch sum 1)
    mean_normaliser: bool = False  # add eps to a mean over the keys, as RALA always does
    num_keys: Optional[int] = None  # M of cross-attention, whose mask is of the keys alone
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
        # Not _replace, which torch 2.4 cannot compile.
        mask, eps, feature_map, _, kind, _, mean, _, _ = self
        return [
            LinearOptions(mask, eps, feature_map, rotary, kind, part, mean)
            for rotary, part in zip(rotaries, parts)
        ]

    @property
    def scored(self) -> bool:
        """Return True if a softmax over the tokens weights the keys."""
        return self.kind == 'rala' and self.token_weights is None

"""Losses of masks, for heads that inherit from Mask2Former's."""

from typing import Any, Dict, Sequence

from torch import Tensor

from ...ops.common.numerics import no_autocast


class Float32MaskLosses:
    """Base class of a Mask2FormerHead, before that class."""

    def loss_by_feat(
        self, all_cls_scores: Sequence[Tensor], all_mask_preds: Sequence[Tensor], *args: Any
    ) -> Dict[str, Tensor]:
        """Match and compare in float32: sums over the points of a mask exceed float16."""
        scores, masks = ([x.float() for x in each] for each in (all_cls_scores, all_mask_preds))
        with no_autocast(masks[0]):
            return super().loss_by_feat(  # type: ignore[misc]
                scores, masks, *args
            )

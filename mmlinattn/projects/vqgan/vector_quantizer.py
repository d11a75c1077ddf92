"""Vector quantiser with a factorised, l2-normalised codebook."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import no_autocast
from ...utils import check_integer, check_number

# Similarities that are in memory at once: 64 MiB in float32.
MAX_SIMILARITIES = 2**24


class Quantized(NamedTuple):
    """Output of :class:`VectorQuantizer`."""

    vectors: Tensor  # [B, N, D] float32, codes on the unit sphere, with the gradient of the inputs
    codes: Tensor  # [B, N] int64 in 0..num_codes - 1
    loss: Tensor  # codebook loss and weighted commitment loss, a scalar


@MODELS.register_module()
class VectorQuantizer(BaseModule):
    """Nearest code on the unit sphere (Yu et al., "Vector-quantized Image Modeling with Improved
    VQGAN", section 3.2).

    Inputs and codes are l2-normalised, so that the nearest code has the largest cosine. The loss
    is ``mean((sg(z) - e)^2) + commitment * mean((z - sg(e))^2)`` and the decoder's gradient passes
    straight through to z. All of it is computed in float32, also under autocast: in bfloat16 every
    third token would get another code.

    Args:
        num_codes: size of the codebook.
        code_dims: dimensions of a code; the paper projects 512 channels to 32.
        commitment: weight of the commitment loss.

    Raises:
        ValueError: a size is not positive, ``commitment`` is negative, or a loaded codebook has
            another size.

    Example:
        >>> out = VectorQuantizer(num_codes=16, code_dims=4)(torch.randn(2, 9, 4))
        >>> out.vectors.shape, out.codes.shape
        (torch.Size([2, 9, 4]), torch.Size([2, 9]))
    """

    def __init__(
        self, num_codes: int = 8192, code_dims: int = 32, commitment: float = 0.25
    ) -> None:
        super().__init__()
        num_codes = check_integer('num_codes', num_codes)
        code_dims = check_integer('code_dims', code_dims)
        self.commitment = check_number('commitment', commitment)
        self.num_codes, self.code_dims = num_codes, code_dims
        self.codebook = nn.Parameter(torch.randn(num_codes, code_dims))
        self._register_load_state_dict_pre_hook(self._check_codebook)

    def forward(self, z: Tensor) -> Quantized:
        """Replace vectors (B, N, D) by their nearest codes."""
        with no_autocast(z):
            z = F.normalize(z.float(), dim=-1)
            codes = self.nearest(z.detach())
            nearest = self.vectors(codes)
            loss = F.mse_loss(nearest, z.detach())
            loss = loss + self.commitment * F.mse_loss(z, nearest.detach())
            return Quantized(z + (nearest - z).detach(), codes, loss)

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """Return the codes (B, N) with the largest cosine to unit vectors (B, N, D)."""
        codebook = F.normalize(self.codebook.float(), dim=-1)
        parts = z.flatten(0, -2).split(max(1, MAX_SIMILARITIES // self.num_codes))
        return torch.cat([(part @ codebook.T).argmax(-1) for part in parts]).view(z.shape[:-1])

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the unit vectors (B, N, D) of codes (B, N)."""
        return F.normalize(F.embedding(codes, self.codebook.float()), dim=-1)

    def _check_codebook(self, state_dict: dict, prefix: str, *_) -> None:
        name = f'{prefix}codebook'
        if name in state_dict and state_dict[name].shape != self.codebook.shape:
            count, dims = (*state_dict[name].shape, '?', '?')[:2]
            raise ValueError(
                f'{name} of the checkpoint has {count} codes of {dims} dimensions, the model '
                f'{self.num_codes} of {self.code_dims}: codes cannot be resized; set '
                f'model.quantizer.num_codes={count} and model.quantizer.code_dims={dims}'
            )

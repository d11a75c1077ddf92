"""Decoder of ViT-VQGAN: from vectors of codes to an image."""

from typing import Sequence, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule, trunc_normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...models.backbones.vision_transformer import ViT
from ...models.layers import map_to_tokens, tokens_to_map
from ...ops.common.checks import check_sides
from ...utils import check_integer


class TanhMLP(BaseModule):
    """Two linear layers with a tanh between them, the output layer of both transformers.

    Args:
        in_dims, hidden_dims, out_dims: channels.

    Example:
        >>> TanhMLP(8, 32, 4)(torch.randn(2, 9, 8)).shape
        torch.Size([2, 9, 4])
    """

    def __init__(self, in_dims: int, hidden_dims: int, out_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_dims, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, out_dims)
        for layer in (self.fc1, self.fc2):
            trunc_normal_init(layer, std=0.02, bias=0)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, N, C)."""
        return self.fc2(torch.tanh(self.fc1(x)))


@MODELS.register_module()
class ViTDecoder(BaseModule):
    """Transformer from codes to pixels (Yu et al. 2021, section 3.1).

    A :class:`ViT` with patches of one token projects the vectors of the codes to the channels of
    its blocks. A :class:`TanhMLP` maps each of its tokens to the pixels of a patch. The output has
    no activation.

    Args:
        code_dims: channels of the inputs.
        patch_size: side of the patch of a token.
        img_size: side, or (height, width), of the images that the positions are for.
        arch: dict with ``embed_dims``, ``num_heads`` and optionally ``depth``, ``mlp_ratio`` and
            ``drop_path_rate``, as of :class:`ViT`.
        attn_cfg, vit_options: see :class:`ViT`.

    Raises:
        ValueError: ``patch_size`` does not divide ``img_size``; see also :class:`ViT`.

    Example:
        >>> arch = dict(embed_dims=32, num_heads=2, depth=1)
        >>> ViTDecoder(4, patch_size=8, img_size=32, arch=arch)(torch.randn(2, 4, 4, 4)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        code_dims: int,
        patch_size: int,
        img_size: Union[int, Sequence[int]],
        arch: dict,
        attn_cfg='SoftmaxAttention',
        **vit_options,
    ) -> None:
        super().__init__()
        sides = check_sides(img_size, 'img_size')
        patch_size = check_integer('patch_size', patch_size)
        if any(side % patch_size for side in sides):
            raise ValueError(f'img_size={img_size} must be a multiple of patch_size={patch_size}')
        self.vit = ViT(
            dict(arch, patch_size=1),
            attn_cfg,
            img_size=tuple(side // patch_size for side in sides),
            in_channels=code_dims,
            with_cls_token=False,
            **vit_options,
        )
        dims, self.patch_size = self.vit.arch['embed_dims'], patch_size
        hidden = int(self.vit.arch['mlp_ratio'] * dims)
        self.head = TanhMLP(dims, hidden, 3 * patch_size**2)

    def forward(self, x: Tensor) -> Tensor:
        """Decode vectors (B, code_dims, h, w) to images (B, 3, h * patch, w * patch)."""
        (x,) = self.vit(x)
        pixels = tokens_to_map(self.head(map_to_tokens(x)), x.shape[-2:])
        return F.pixel_shuffle(pixels, self.patch_size)

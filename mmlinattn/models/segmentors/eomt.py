"""Segmentor whose queries are tokens of a plain ViT."""

from typing import Any, Dict, List, Tuple

import torch
from mmseg.models.segmentors import EncoderDecoder
from torch import Tensor, nn

from ..backbones import ViT
from ..backbones.patch_embed import prepend_tokens


class EoMT(EncoderDecoder):
    """Encoder-only mask transformer (Kerssies et al., "Your ViT is Secretly an Image Segmentation
    Model", CVPR 2025): learnt queries are extra tokens in the last layers of a plain ViT.

    Each of these layers, and the final norm after it, gives queries and a map to the head. The head
    predicts a mask and a class for each query. In training all of them have a loss. The paper's
    masked attention in training, and its annealing, are left out: each token attends to all. The
    release has a loss before each of these layers and after the last one; without masks after the
    last one alone.

    Args:
        backbone: config of a :class:`mmlinattn.models.backbones.ViT` with maps as output. The
            attentions of the last layers must support extra tokens.
        decode_head: config of an :class:`EoMTHead`.
        num_query_layers: number of layers with queries; 4 in the paper for ViT-L.
        kwargs: options of ``EncoderDecoder`` of MMSegmentation; there is no neck.

    Raises:
        TypeError: the backbone is no ViT.
        ValueError: ``num_query_layers`` is not in 1 to the number of layers, the backbone does not
            return maps of its last layer, or has a late class token or core attention, or an
            attention does not support extra tokens.

    Example:
        >>> arch = dict(embed_dims=32, num_heads=2, depth=3, patch_size=8)
        >>> model = EoMT(
        ...     dict(type='ViT', arch=arch, img_size=64),
        ...     dict(
        ...         type='mmlinattn.models.segmentors.EoMTHead', in_channels=32, num_classes=5,
        ...         num_queries=10, num_upscales=1,
        ...     ),
        ...     num_query_layers=2,
        ... )
        >>> first, last = model.extract_feat(torch.randn(1, 3, 64, 64))
        >>> [tuple(out.shape) for out in last]
        [(1, 10, 32), (1, 32, 8, 8)]
    """

    def __init__(
        self, backbone: dict, decode_head: dict, num_query_layers: int = 4, **kwargs: Any
    ) -> None:
        super().__init__(backbone, decode_head, **kwargs)
        vit = self.backbone
        if not isinstance(vit, ViT):
            raise TypeError(f'EoMT needs a ViT of mmlinattn, but backbone is {type(vit).__name__}')
        depth = len(vit.layers)
        if type(num_query_layers) is not int or not 1 <= num_query_layers <= depth:
            raise ValueError(f'num_query_layers must be 1 to {depth}, got {num_query_layers!r}')
        if vit.norm is None or vit.out_type != 'featmap':
            raise ValueError(
                'EoMT needs the maps of the last layer and its norm: leave out_indices, '
                "final_norm and out_type='featmap' at their defaults, got out_indices="
                f'{vit.out_indices}, final_norm={vit.arch["final_norm"]}, {vit.out_type!r}'
            )
        if vit.cls_token is not None:
            raise ValueError(f'cls_token_from must be 0 in EoMT, got {vit.cls_token_from}')
        if vit.cores is not None:
            raise ValueError('EoMT does not take CoreAttention, whose tokens read the cores alone')
        self.num_queries, self.first_layer = self.decode_head.num_queries, depth - num_query_layers
        for i in range(self.first_layer, depth):
            vit.layers[i].attn.check_extra_tokens(self._num_extra_tokens(i))
        self.queries = nn.Parameter(torch.randn(1, self.num_queries, vit.arch['embed_dims']))

    def loss(self, inputs: Tensor, data_samples: list) -> Dict[str, Tensor]:
        patch = self.backbone.arch['patch_size']
        if inputs.shape[2] % patch or inputs.shape[3] % patch:
            raise ValueError(
                f'EoMT trains on images of whole patches of {patch} pixels, got '
                f'{tuple(inputs.shape[2:])}: set model.data_preprocessor.size'
            )
        return super().loss(inputs, data_samples)

    def encode_decode(self, inputs: Tensor, batch_img_metas: List[dict]) -> Tensor:
        """Return logits (B, K, H, W) of images (B, 3, H, W), which may end within a patch."""
        (height, width), patch = inputs.shape[2:], self.backbone.arch['patch_size']
        # Masks cover whole patches.
        covered = (-(-height // patch) * patch, -(-width // patch) * patch)
        metas = [dict(meta, img_shape=covered, pad_shape=covered) for meta in batch_img_metas]
        return super().encode_decode(inputs, metas)[:, :, :height, :width]

    def _num_extra_tokens(self, i: int) -> int:
        queries = self.num_queries if i >= self.first_layer else 0
        return queries + self.backbone.num_extra_tokens(i)

    def extract_feat(self, inputs: Tensor) -> List[Tuple[Tensor, Tensor]]:
        """Return queries (B, Q, C) and map (B, C, H, W) after each layer with queries."""
        vit, outs = self.backbone, []
        tokens, hw_shape = vit.embed(inputs.contiguous(memory_format=torch.channels_last))
        for i, layer in enumerate(vit.layers):
            if i == self.first_layer:
                tokens = prepend_tokens(self.queries, tokens)
            num_extra = self._num_extra_tokens(i)
            tokens = vit.run_block(layer, tokens, hw_shape, num_extra)
            if i >= self.first_layer:
                out = vit.norm(tokens)
                found = vit.format_output(out, hw_shape, num_extra)
                outs.append((out[:, : self.num_queries], found))
        return outs

"""Non-local blocks for maps, sequences and volumes."""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.non_local import NonLocal1d, NonLocal2d, NonLocal3d
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, no_autocast


@MODELS.register_module()
class NonLocalBlock(BaseModule):
    """Non-local block, "Non-local Neural Networks" (Wang et al., CVPR 2018)::

        z_i = x_i + W_z sum_j f(x_i, x_j) g(x_j) / C

    The pairwise function f is one of

    - ``'gaussian'``: ``exp(x_i . x_j)`` and ``'embedded_gaussian'``: ``exp(theta_i . phi_j)``,
      divided by their sum: one call of torch's SDPA, O(N^2) time;
    - ``'dot_product'``: ``theta_i . phi_j / N``, by associativity in O(N) time;
    - ``'concatenation'``: ``ReLU(w . [theta_i, phi_j]) / N``, a sum over the keys above a
      threshold, by sorting them in O(N log N) time.

    None stores an N x N matrix, unless SDPA does for the first two. Results and names of weights
    equal those of mmcv's ``NonLocal1d``, ``NonLocal2d`` and ``NonLocal3d``. It can replace them as
    a plugin of MMDetection's ResNet::

        plugins=[dict(
            cfg=dict(type='NonLocalBlock', mode='dot_product'),
            stages=(False, True, True, False), position='after_conv3')]

    For a list of maps, as a neck, see :class:`NonLocalNeck`.

    Args:
        in_channels: channels C of the input.
        dims: 1 for (B, C, L), 2 for (B, C, H, W), 3 for (B, C, T, H, W).
        mode: f, see above.
        reduction: theta, phi and g have C / reduction channels.
        use_scale: divide the logits of ``'embedded_gaussian'`` by the root of these channels.
        sub_sample: max-pool keys and values 2 x 2; the frames of a volume are not pooled.
        norm_cfg: norm after ``W_z``, BN in the paper. The norm, or else ``W_z``, is initialised
            with 0.
        init_cfg: MMEngine initialisation, replaces the one above.

    Raises:
        ValueError: the mode or number of dims is unknown, a size is below 1; in the forward pass,
            the input has another shape.

    Example:
        >>> x = torch.randn(2, 16, 7, 9)
        >>> torch.equal(NonLocalBlock(16, mode='dot_product')(x), x)  # at initialisation
        True
    """

    def __init__(
        self,
        in_channels: int,
        dims: int = 2,
        mode: str = 'embedded_gaussian',
        reduction: int = 2,
        use_scale: bool = True,
        sub_sample: bool = False,
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        if dims not in (1, 2, 3):
            raise ValueError(f'dims must be 1, 2 or 3, got {dims!r}')
        if in_channels < 1 or reduction < 1:
            raise ValueError(
                f'in_channels and reduction must be at least 1, got {in_channels} and {reduction}'
            )
        self.in_channels, self.dims, self.mode = in_channels, dims, mode
        self.use_scale = use_scale
        layers = (NonLocal1d, NonLocal2d, NonLocal3d)[dims - 1](
            in_channels, sub_sample, mode=mode, reduction=reduction, norm_cfg=norm_cfg
        )
        own = dict(layers.named_children())
        for name in (*own, 'theta', 'phi'):  # 'gaussian' embeds neither
            self.add_module(name, own.get(name, nn.Identity()))
        self._init_parameters()

    def init_weights(self) -> None:
        """Initialise as the constructor does, after the backbone has initialised convolutions."""
        if self.init_cfg:
            super().init_weights()
        else:
            self._init_parameters()

    def _init_parameters(self) -> None:
        last = self.conv_out.norm if self.conv_out.with_norm else self.conv_out.conv
        for layer in self.modules():
            if layer is last:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                nn.init.normal_(layer.weight, std=0.01)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x (B, C, ...); the shape does not change.

        Raises:
            ValueError: x has another number of dimensions or channels.
        """
        if x.dim() != self.dims + 2 or x.shape[1] != self.in_channels:
            sizes = ', '.join(['B', str(self.in_channels), *('L', 'HW', 'THW')[self.dims - 1]])
            raise ValueError(f'x must have shape ({sizes}), got {tuple(x.shape)}')
        # Tokens: queries [B, N, c], keys and values [B, M, c].
        queries, keys, values = (
            layer(x).flatten(2).transpose(1, 2) for layer in (self.theta, self.phi, self.g)
        )
        if self.mode == 'concatenation':
            out = self._concatenation(queries, keys, values)
        elif self.mode == 'dot_product':
            out = _dot_product(queries, keys, values)
        else:
            scaled = self.mode == 'embedded_gaussian' and self.use_scale
            out = _softmax(queries, keys, values, queries.shape[-1] ** -0.5 if scaled else 1.0)
        out = out.to(x.dtype).transpose(1, 2).unflatten(2, x.shape[2:])
        return x + self.conv_out(out)

    def _concatenation(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Compute ``sum_j ReLU(a_i + b_j) g_j / M`` by sorting the keys.

        In descending order, the keys with ``b_j > -a_i`` come first; prefix sums give their sum.
        """
        dtype, conv = accumulation_dtype(values.dtype), self.concat_project.conv
        with no_autocast(values):
            weight = conv.weight
            if 'weight' not in conv._parameters:  # a hook computes it: read it by a call
                one_hot = torch.eye(conv.in_channels).to(next(conv.parameters()))
                weight = conv(one_hot[..., None, None])
            query_weight, key_weight = weight.to(dtype).flatten().chunk(2)
            a, b = queries.to(dtype) @ query_weight, keys.to(dtype) @ key_weight  # [B, N], [B, M]
            b, order = b.sort(-1, descending=True)
            weighted = torch.stack([torch.ones_like(b), b], -1)  # [B, M, 2]
            ordered = values.to(dtype).gather(1, order[..., None].expand_as(values))
            sums = (weighted[..., None] * ordered[:, :, None]).cumsum(1)  # [B, M, 2, c]
            sums = F.pad(sums, (0, 0, 0, 0, 1, 0)).flatten(2)  # sums of the first 0, 1, ... keys
            count = torch.searchsorted(-b.detach(), a.detach())  # [B, N]
            chosen = sums.gather(1, count[..., None].expand(-1, -1, sums.shape[-1]))
            ones, weights = chosen.chunk(2, -1)
            return (a[..., None] * ones + weights) / b.shape[1]


@MODELS.register_module()
class NonLocalNeck(BaseModule):
    """Neck with a :class:`NonLocalBlock` for each map of a backbone.

    Args:
        in_channels: channels of each map.
        init_cfg: MMEngine initialisation.
        kwargs: options of the blocks.

    Raises:
        ValueError: the number of maps differs from that of ``in_channels``; errors of
            :class:`NonLocalBlock`.

    Example:
        >>> neck = NonLocalNeck([16, 32], mode='dot_product')
        >>> [tuple(x.shape) for x in neck([torch.randn(1, 16, 8, 8), torch.randn(1, 32, 4, 4)])]
        [(1, 16, 8, 8), (1, 32, 4, 4)]
    """

    def __init__(
        self, in_channels: Sequence[int], init_cfg: Optional[dict] = None, **kwargs
    ) -> None:
        super().__init__(init_cfg)
        self.blocks = ModuleList(NonLocalBlock(channels, **kwargs) for channels in in_channels)

    def forward(self, inputs: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """Apply the blocks to the maps (B, C, ...); shapes do not change."""
        if len(inputs) != len(self.blocks):
            raise ValueError(f'in_channels has {len(self.blocks)} maps, got {len(inputs)}')
        return tuple(block(x) for block, x in zip(self.blocks, inputs))


def _dot_product(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute ``theta (phi^T g) / M``; the product of keys and values is small, c x c."""
    dtype = accumulation_dtype(values.dtype)
    with no_autocast(values):
        state = keys.to(dtype).transpose(1, 2) @ values.to(dtype)  # [B, c, c]
        return queries.to(dtype) @ (state / keys.shape[1])


def _softmax(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    width = values.shape[-1]
    # SDPA's fast kernels need values as wide as keys.
    values = F.pad(values, (0, queries.shape[-1] - width))
    q, k, v = (x[:, None] for x in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, scale=scale)[:, 0, :, :width]

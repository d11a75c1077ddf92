"""Non-local blocks on maps, sequences and volumes."""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, no_autocast
from .attention_info import AttentionCard

MODES = ('gaussian', 'embedded_gaussian', 'dot_product', 'concatenation')


@MODELS.register_module()
class NonLocalBlock(BaseModule):
    """Non-local block (Wang et al., "Non-local Neural Networks", CVPR 2018)::

        z_i = x_i + W_z sum_j f(x_i, x_j) g(x_j) / C

    with f one of

    - ``'gaussian'``: ``exp(x_i . x_j)`` and ``'embedded_gaussian'``: ``exp(theta_i . phi_j)``,
      divided by their sum: one call of torch's SDPA, O(N^2) time;
    - ``'dot_product'``: ``theta_i . phi_j / N``, by associativity in O(N) time;
    - ``'concatenation'``: ``ReLU(w . [theta_i, phi_j]) / N``, a sum over the keys above a
      threshold: by sorting them, in O(N log N) time.

    None has N x N numbers in memory (the first two where SDPA has not). Equal to mmcv's
    ``NonLocal1d``, ``NonLocal2d`` and ``NonLocal3d``, with the same names of weights, and in their
    place as a plugin of MMDetection's ResNet::

        plugins=[dict(
            cfg=dict(type='NonLocalBlock', mode='dot_product'),
            stages=(False, True, True, False), position='after_conv3')]

    For a list of maps, as a neck, see :class:`NonLocalNeck`.

    Args:
        in_channels: channels C of the input.
        dims: 1 for (B, C, L), 2 for (B, C, H, W), 3 for (B, C, T, H, W).
        mode: f, see above.
        reduction: theta, phi and g have C / reduction channels.
        use_scale: divides the logits of ``'embedded_gaussian'`` by the root of these channels.
        sub_sample: keys and values are max-pooled 2 x 2; frames of a volume are not.
        norm_cfg: norm behind ``W_z``; the paper has BN there. ``W_z``, or the norm, is 0 at the
            start.
        init_cfg: MMEngine initialisation, in place of the start above.

    Raises:
        ValueError: an unknown mode or number of dims, sizes below 1; in the forward pass, an input
            of another shape.

    Example:
        >>> x = torch.randn(2, 16, 7, 9)
        >>> torch.equal(NonLocalBlock(16, mode='dot_product')(x), x)  # at the start
        True
    """

    card = AttentionCard(
        formula='x_i + W_z sum_j f(x_i, x_j) g(x_j) / C, four kinds of f',
        time='O(N d^2), O(N log N d), O(N^2 d)',
        memory='O(N d)',
        source='Wang et al., CVPR 2018',
        use='a block to add to a CNN, as a neck or a plugin; dot_product for large maps',
    )

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
        if mode not in MODES:
            raise ValueError(f'mode must be one of {MODES}, got {mode!r}')
        if in_channels < 1 or reduction < 1:
            raise ValueError(
                f'in_channels and reduction must be at least 1, got {in_channels} and {reduction}'
            )
        self.in_channels = in_channels
        self.dims = dims
        self.mode = mode
        self.use_scale = use_scale
        inner = max(in_channels // reduction, 1)

        def conv(of: int, to: int, **kwargs) -> ConvModule:
            cfg = dict(type=f'Conv{dims}d')
            return ConvModule(of, to, 1, conv_cfg=cfg, **dict(dict(act_cfg=None), **kwargs))

        def pooled(layer: nn.Module) -> nn.Module:
            if not sub_sample:
                return layer
            pool = (nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool3d((1, 2, 2)))[dims - 1]
            return pool if isinstance(layer, nn.Identity) else nn.Sequential(layer, pool)

        def embedded() -> nn.Module:
            return nn.Identity() if mode == 'gaussian' else conv(in_channels, inner)

        self.g = pooled(conv(in_channels, inner))
        self.conv_out = conv(inner, in_channels, norm_cfg=norm_cfg)
        self.theta, self.phi = embedded(), pooled(embedded())
        if mode == 'concatenation':
            # Of the two halves of its weight; as mmcv has it, a layer of two dimensions.
            self.concat_project = ConvModule(2 * inner, 1, 1, bias=False, act_cfg=dict(type='ReLU'))
        self._start()

    def init_weights(self) -> None:
        """As the constructor does: a host's initialisation of all its convolutions ends here."""
        if self.init_cfg:
            super().init_weights()
        else:
            self._start()

    def _start(self) -> None:
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
        """(B, C, ...) to the same shape.

        Raises:
            ValueError: another number of dimensions or channels.
        """
        if x.dim() != self.dims + 2 or x.shape[1] != self.in_channels:
            sizes = ', '.join(['B', str(self.in_channels), *('L', 'HW', 'THW')[self.dims - 1]])
            raise ValueError(f'x must have shape ({sizes}), got {tuple(x.shape)}')
        values = _tokens(self.g(x))  # [B, M, c]
        queries = _tokens(self.theta(x))  # [B, N, c]
        keys = _tokens(self.phi(x))  # [B, M, c]
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
        """``sum_j ReLU(a_i + b_j) g_j / M``: the keys with ``b_j > -a_i`` are the first ones, if
        these are sorted."""
        dtype = accumulation_dtype(values.dtype)
        with no_autocast(values):
            of_query, of_key = self.concat_project.conv.weight.to(dtype).flatten().chunk(2)
            a, b = queries.to(dtype) @ of_query, keys.to(dtype) @ of_key  # [B, N], [B, M]
            b, order = b.sort(-1, descending=True)
            weighted = torch.stack([torch.ones_like(b), b], -1)  # [B, M, 2]
            ordered = values.to(dtype).gather(1, order[..., None].expand_as(values))
            sums = (weighted[..., None] * ordered[:, :, None]).cumsum(1)  # [B, M, 2, c]
            sums = F.pad(sums, (0, 0, 0, 0, 1, 0)).flatten(2)  # none of them, the first, ...
            count = torch.searchsorted(-b.detach(), a.detach())  # [B, N]
            chosen = sums.gather(1, count[..., None].expand(-1, -1, sums.shape[-1]))
            ones, weights = chosen.chunk(2, -1)
            return (a[..., None] * ones + weights) / b.shape[1]


@MODELS.register_module()
class NonLocalNeck(BaseModule):
    """A :class:`NonLocalBlock` for each map of a backbone.

    Args:
        in_channels: channels of each map.
        init_cfg: MMEngine initialisation.
        others: options of the blocks.

    Raises:
        ValueError: another number of maps than channels, and those of :class:`NonLocalBlock`.

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
        """Maps (B, C, ...), to as many of the same shapes."""
        if len(inputs) != len(self.blocks):
            raise ValueError(f'in_channels names {len(self.blocks)} maps, got {len(inputs)}')
        return tuple(block(x) for block, x in zip(self.blocks, inputs))


def _tokens(x: Tensor) -> Tensor:
    """(B, C, ...) to (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def _dot_product(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """``theta (phi^T g) / M``: the keys are few numbers after the first product."""
    dtype = accumulation_dtype(values.dtype)
    with no_autocast(values):
        state = keys.to(dtype).transpose(1, 2) @ values.to(dtype)  # [B, c, c]
        return queries.to(dtype) @ (state / keys.shape[1])


def _softmax(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    width = values.shape[-1]
    # SDPA has its good kernels for values as wide as keys.
    values = F.pad(values, (0, queries.shape[-1] - width))
    q, k, v = (x[:, None] for x in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, scale=scale)[:, 0, :, :width]

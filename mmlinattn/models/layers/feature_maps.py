"""Feature maps of queries and keys for linear attention: table 6 of the Ripple paper.

Each maps queries and keys (B, heads, N, d) to features (B, heads, N, m) of the same dtype. Half
types are computed in float32, since exponentials and sines of rounded numbers are inaccurate.
"""

from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import adaptive_features
from ...ops.common.dispatch import BACKENDS
from ...ops.common.feature_maps import FEATURE_MAPS
from ...ops.common.numerics import accumulation_dtype, masked_softmax, multiply, no_autocast
from ...ops.learnt_features import sines_and_cosines
from ...utils import check_integer, check_number
from .build import build_part
from .linear_projection import has_hooks


class FeatureMap(BaseModule):
    """Base class of feature maps. A subclass implements :meth:`features` or :meth:`map`.

    Args:
        head_dim: channels d per head.
        num_heads: heads.
    """

    exceeds_float16 = False  # if True, float16 inputs give float32
    is_per_token = False  # if True, the features of packed images are computed at once

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_heads = num_heads

    def features(self, x: Tensor) -> Tensor:
        """Map x (B, heads, N, d) to features (B, heads, N, m)."""
        raise NotImplementedError

    def map(self, q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        return self.features(q), self.features(k)

    def forward(
        self, q: Tensor, k: Tensor, key_padding_mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Return the features of queries and keys in their dtype; see :attr:`exceeds_float16`.

        Args:
            q, k: (B, heads, N, d).
            key_padding_mask: (B, N) bool, True = padding; for maps that depend on all keys.
        """
        dtype = accumulation_dtype(q.dtype)
        out_dtype = torch.float32 if self.exceeds_float16 and q.dtype == torch.float16 else q.dtype
        with no_autocast(q):
            q, k = self.map(q.to(dtype), k.to(dtype), key_padding_mask)
        return q.to(out_dtype), k.to(out_dtype)


class FixedFeatures(FeatureMap):
    """Feature map without parameters, see :func:`mmlinattn.ops.feature_map`."""

    is_per_token = True

    def __init__(self, head_dim: int, num_heads: int, name: str) -> None:
        super().__init__(head_dim, num_heads)
        self.name = name

    def features(self, x: Tensor) -> Tensor:
        return FEATURE_MAPS[self.name](x)


@MODELS.register_module()
class EfficientFeatures(FeatureMap):
    """Softmax of queries over channels and of keys over tokens, "Efficient Attention: Attention
    with Linear Complexities" (Shen et al., WACV 2021). The normaliser of linear attention is 1.

    Example:
        >>> q, k = EfficientFeatures(32, 6)(*torch.randn(2, 1, 6, 10, 32))
        >>> bool((q.sum(-1) - 1).abs().max() < 1e-5), bool((k.sum(-2) - 1).abs().max() < 1e-5)
        (True, True)
    """

    exceeds_float16 = True  # the softmax over many keys underflows

    def map(self, q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        mask = None if mask is None else mask[:, None, None]
        return q.softmax(-1), masked_softmax(k.transpose(-2, -1), mask).transpose(-2, -1)


class HeadLinear(nn.Module):
    """Linear layer on (B, heads, N, in), shared by the heads or separate per head."""

    def __init__(self, in_dims: int, out_dims: int, num_heads: int, per_head: bool) -> None:
        super().__init__()
        shape = (num_heads,) if per_head else ()
        bound = in_dims**-0.5
        self.weight = nn.Parameter(torch.empty(*shape, out_dims, in_dims).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*shape, out_dims).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return multiply(x, weight) + (bias if bias.dim() == 1 else bias[:, None])


class RandomFeatures(FeatureMap):
    """Base class of maps with random weights, optionally drawn again at each training step.

    New weights come from torch's generator of the device, once per forward pass: activation
    checkpointing recomputes with the same weights. Each process draws its own. Evaluation and
    export use one draw, which is saved with the weights.

    Args:
        num_features: m, the number of frequencies or directions; d by default.
        resample: draw new weights at each training step.

    Raises:
        ValueError: ``num_features`` is not a positive integer.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_features: Optional[int] = None,
        resample: bool = False,
    ) -> None:
        super().__init__(head_dim, num_heads)
        self.num_features = feature_count(num_features, head_dim)
        self.resample = resample

    def weights(self, saved: Tensor) -> Tensor:
        """Return the random weights of this forward pass, ``saved`` or new ones of its shape."""
        return self.draw(saved) if self.resample and self.training else saved

    def draw(self, like: Tensor) -> Tensor:
        """Draw weights with the shape, dtype and device of ``like``."""
        return torch.randn_like(like)


def feature_count(num_features: Optional[int], head_dim: int) -> int:
    """Return the number of features, ``head_dim`` by default."""
    return check_integer('num_features', head_dim if num_features is None else num_features)


@MODELS.register_module()
class AdaptiveFeatures(RandomFeatures):
    """Learnt map of the Ripple paper, ``ReLU(W2 [sin(W1 x); cos(W1 x)] + b2)``.

    W1 is initialised with standard normal numbers. One map shared by all heads matches the
    published parameter counts of the DeiT models: 3,104 per layer with heads of 32 channels.

    Args:
        per_head: use a separate map per head.
        resample: draw W1 at each training step instead of learning it ("randomly sampled W1").
        output_layer: False omits W2 and b2: the features are 2 m rectified sines and cosines. (A
            footnote of the paper calls its row without the fully connected network identical to
            T2R; :class:`T2RFeatures` implements that reading.)
        backend: see :func:`mmlinattn.ops.adaptive_features`; unused without an output layer.
        kwargs: options of :class:`RandomFeatures`.

    Raises:
        ValueError: ``num_features`` is not a positive integer, or ``backend`` is unknown.

    Example:
        >>> q, k = AdaptiveFeatures(32, 6)(*torch.randn(2, 1, 6, 10, 32))
        >>> q.shape, bool((q >= 0).all())
        (torch.Size([1, 6, 10, 32]), True)
    """

    is_per_token = True

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        per_head: bool = False,
        output_layer: bool = True,
        backend: str = 'auto',
        **kwargs,
    ) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        if backend not in BACKENDS:
            raise ValueError(f'backend must be one of {BACKENDS}, got {backend!r}')
        self.backend = backend
        count = self.num_features
        frequencies = torch.randn(*([num_heads] if per_head else []), count, head_dim)
        if self.resample:
            self.register_buffer('frequencies', frequencies)
        else:
            self.frequencies = nn.Parameter(frequencies)
        layer = HeadLinear(2 * count, count, num_heads, per_head) if output_layer else None
        self.output_layer = layer or nn.Identity()

    def forward(
        self, q: Tensor, k: Tensor, key_padding_mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        layer = self.output_layer
        if type(layer) is not HeadLinear or has_hooks(layer):
            return super().forward(q, k, key_padding_mask)
        return adaptive_features(
            q, k, self.weights(self.frequencies), layer.weight, layer.bias, backend=self.backend
        )

    def map(self, q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        frequencies = self.weights(self.frequencies).to(q.dtype)
        q, k = (F.relu(self.output_layer(sines_and_cosines(x, frequencies))) for x in (q, k))
        return q, k


@MODELS.register_module()
class T2RFeatures(FeatureMap):
    """Learnt map ``ReLU(W x + b)``, "Finetuning Pretrained Transformers into RNNs" (Kasai et al.,
    EMNLP 2021).

    Args:
        num_features: a positive integer; d by default.

    Example:
        >>> q, k = T2RFeatures(32, 6, num_features=16)(*torch.randn(2, 1, 6, 10, 32))
        >>> q.shape
        torch.Size([1, 6, 10, 16])
    """

    is_per_token = True

    def __init__(self, head_dim: int, num_heads: int, num_features: Optional[int] = None) -> None:
        super().__init__(head_dim, num_heads)
        count = feature_count(num_features, head_dim)
        self.linear = HeadLinear(head_dim, count, num_heads, per_head=False)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x))


@MODELS.register_module()
class DPFPFeatures(FeatureMap):
    """Deterministic parameter-free projection, "Linear Transformers Are Secretly Fast Weight
    Programmers" (Schlag et al., ICML 2021).

    The features are products of the rectified channels of x and -x with the same channels rolled
    by 1 to ``order``: 2 d order features.

    Args:
        order: nu of the paper, a positive integer.

    Example:
        >>> q, k = DPFPFeatures(32, 6, order=2)(*torch.randn(2, 1, 6, 10, 32))
        >>> q.shape
        torch.Size([1, 6, 10, 128])
    """

    exceeds_float16 = True  # products of two channels
    is_per_token = True

    def __init__(self, head_dim: int, num_heads: int, order: int = 1) -> None:
        super().__init__(head_dim, num_heads)
        self.order = check_integer('order', order)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(torch.cat([x, -x], -1))
        return torch.cat([x * x.roll(i, -1) for i in range(1, self.order + 1)], -1)


@MODELS.register_module()
class RFAFeatures(RandomFeatures):
    """Random sines and cosines of unit vectors, "Random Feature Attention" (Peng et al., ICLR
    2021), with a learnt scale per channel: 2 m features.

    The features are signed. The normaliser is positive only in expectation, and the reference
    implementation of :func:`mmlinattn.ops.ripple_attention` raises an error for them.

    Args:
        kwargs: options of :class:`RandomFeatures`; the paper has ``resample=True``.

    Example:
        >>> q, k = RFAFeatures(32, 6, num_features=8)(*torch.randn(2, 1, 6, 10, 32))
        >>> q.shape, bool((q < 0).any())
        (torch.Size([1, 6, 10, 16]), True)
    """

    is_per_token = True

    def __init__(self, head_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        self.register_buffer('frequencies', torch.randn(self.num_features, head_dim))
        self.scale = nn.Parameter(torch.ones(head_dim))

    def map(self, q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        frequencies = self.weights(self.frequencies).to(q.dtype) * self.scale.to(q.dtype)
        factor = frequencies.shape[0] ** -0.5
        q, k = (factor * sines_and_cosines(l2_normalize(x), frequencies) for x in (q, k))
        return q, k


@MODELS.register_module()
class PerformerFeatures(RandomFeatures):
    """Positive orthogonal random features of the softmax kernel (FAVOR+), "Rethinking Attention
    with Performers" (Choromanski et al., ICLR 2021).

    Args:
        eps: added to each feature.
        kwargs: options of :class:`RandomFeatures`. The paper draws again every so many steps.

    Example:
        >>> q, k = PerformerFeatures(32, 6)(*torch.randn(2, 1, 6, 10, 32))
        >>> q.shape, bool((q > 0).all())
        (torch.Size([1, 6, 10, 32]), True)
    """

    exceeds_float16 = True  # gradients of features near eps do

    def __init__(self, head_dim: int, num_heads: int, eps: float = 1e-6, **kwargs) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        self.eps = check_number('eps', eps)
        like = torch.empty(self.num_features, head_dim)
        self.register_buffer('directions', orthogonal_gaussian(like))

    def map(self, q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        directions = self.weights(self.directions).to(q.dtype)
        q, k = (x * self.head_dim**-0.25 for x in (q, k))
        q, k = (multiply(x, directions) - x.square().sum(-1, keepdim=True) / 2 for x in (q, k))
        if mask is not None:
            k = k.masked_fill(mask[:, None, :, None], torch.finfo(k.dtype).min)
        # These factors cancel in the attention: one per query, and one for all keys of a head.
        q = q - q.amax(-1, keepdim=True).detach()
        k = k - k.amax((-2, -1), keepdim=True).detach()
        return q.exp() + self.eps, k.exp() + self.eps

    def draw(self, like: Tensor) -> Tensor:
        return orthogonal_gaussian(like)


@MODELS.register_module()
class FocusedFeatures(FeatureMap):
    """Focused map ``|r| / |r^p| * r^p`` with ``r = (ReLU(x) + 1e-6) / softplus(scale)``, "FLatten
    Transformer: Vision Transformer using Focused Linear Attention" (Han et al., ICCV 2023).

    The elementwise power emphasises the largest channels and keeps the norm, which is over the
    channels of all heads, as in the released code.

    Args:
        power: p, at least 1.

    Example:
        >>> focused = FocusedFeatures(2, 1, power=3)
        >>> q, k = focused(torch.tensor([[[[1.0, 2.0]]]]), torch.zeros(1, 1, 1, 2))
        >>> round((q[..., 1] / q[..., 0]).item(), 3)  # the larger channel weighs more
        8.0
    """

    is_per_token = True
    exceeds_float16 = True  # gradients of a head without large channels do

    def __init__(self, head_dim: int, num_heads: int, power: float = 3) -> None:
        super().__init__(head_dim, num_heads)
        self.power = check_number('power', power, least=1)
        self.scale = nn.Parameter(torch.zeros(num_heads, 1, head_dim))

    def features(self, x: Tensor) -> Tensor:
        x = (F.relu(x) + 1e-6) / F.softplus(self.scale.to(x.dtype))
        # The factor cancels; it keeps the powers from underflow and overflow.
        power = (x / x.amax((1, 3), keepdim=True).detach()) ** self.power
        return _norm(x) / _norm(power) * power


def _norm(x: Tensor) -> Tensor:
    """Return the norm over heads and channels of (B, heads, N, d)."""
    return x.square().sum((1, 3), keepdim=True).sqrt()


def l2_normalize(x: Tensor, dims: Sequence[int] = (-1,)) -> Tensor:
    """Divide x by its norm along ``dims``, or by 1e-6 if the norm is smaller.

    The lower bound limits gradients: queries and keys can be 0 after a norm over equal channels.
    """
    return x / torch.linalg.vector_norm(x, dim=tuple(dims), keepdim=True).clamp(min=1e-6)


def orthogonal_gaussian(like: Tensor) -> Tensor:
    """Return blocks of orthogonal rows with the norms of standard normal vectors.

    Shape, device and dtype are those of ``like``, (rows, columns); half types give float32.
    """
    rows, columns = like.shape
    blocks = -(-rows // columns)
    options: Dict[str, Any] = dict(dtype=accumulation_dtype(like.dtype), device=like.device)
    q, r = torch.linalg.qr(torch.randn(blocks, columns, columns, **options))
    # The factorisation does not choose signs at random, which would bias the directions.
    signs = r.diagonal(dim1=-2, dim2=-1).sign()
    directions = (q * signs[:, None]).flatten(0, 1)[:rows]
    return directions * torch.randn(rows, columns, **options).norm(dim=-1, keepdim=True)


def build_feature_map(cfg: Union[str, dict], head_dim: int, num_heads: int) -> FeatureMap:
    """Build a feature map for an attention.

    It is ``'elu+1'``, ``'relu'`` or ``'softmax'``, or the name or config of a registered map.

    Raises:
        ValueError: the map is unknown, or has no options.

    Example:
        >>> type(build_feature_map(dict(type='DPFPFeatures', order=2), 32, 6)).__name__
        'DPFPFeatures'
    """
    kind = cfg.get('type') if isinstance(cfg, dict) else cfg
    if isinstance(kind, str) and kind in FEATURE_MAPS:
        if isinstance(cfg, dict) and len(cfg) > 1:
            raise ValueError(f'feature_map {kind!r} has no options, got {cfg}')
        return FixedFeatures(head_dim, num_heads, kind)
    sizes = dict(head_dim=head_dim, num_heads=num_heads)
    return build_part('feature_map', FeatureMap, cfg, FEATURE_MAPS, **sizes)

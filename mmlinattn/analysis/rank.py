"""Numerical rank and singular values of what attentions compute, by layer.

"Breaking the Low-Rank Dilemma of Linear Attention" (Fan et al., CVPR 2025), figures 2, 4, 5 and 8,
compares softmax attention, linear attention and RALA by the rank of two matrices: the sum over the
keys that linear attention keeps in place of the keys and values, and the output features.
"""

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from ..models.layers import MALA, RALA, BaseAttention, LinearAttention, MLLAAttention
from ..models.layers.attend_calls import Call, calls_of
from ..models.layers.rotary import rotary_over_heads
from ..ops.linear.options import LinearOptions
from ..ops.linear.reference import kv_sum as kv_sum_reference

# Matrices of a layer: name in words, and shape.
MATRICES = {
    'kv_sum': ('KV sum', 'd x d'),
    'head_output': ('head output', 'N x d'),
    'layer_output': ('layer output', 'N x C'),
}


@dataclass(frozen=True)
class Spectrum:
    """Ranks and singular values of a matrix of a layer, over images and heads.

    Args:
        ranks: numerical rank of each matrix, see :func:`numerical_rank`.
        full: largest rank that the shape of each matrix allows.
        values: median over the matrices of the singular values over the largest one, falling. If
            shapes differ, as many as the smallest matrix has.
    """

    ranks: List[int]
    full: List[int]
    values: List[float]

    @property
    def mean(self) -> float:
        """Mean rank."""
        return sum(self.ranks) / len(self.ranks)

    @property
    def mean_full(self) -> float:
        """Mean of the largest possible ranks."""
        return sum(self.full) / len(self.full)


@dataclass(frozen=True)
class LayerRank:
    """Result of :func:`layer_ranks` for one attention.

    Args:
        name: name of the attention in the backbone.
        attention: its class.
        tokens: number of tokens of each image, extra tokens included.
        spectra: by the names of ``MATRICES``; without ``'kv_sum'`` where :func:`kv_sum` is None.
    """

    name: str
    attention: str
    tokens: List[int]
    spectra: Dict[str, Spectrum]

    def to_dict(self) -> dict:
        """Return the fields and the mean ranks as built-in types, for JSON."""
        means = {key: spectrum.mean for key, spectrum in self.spectra.items()}
        return dict(asdict(self), mean_ranks=means)


def numerical_rank(values: Tensor, tolerance: float) -> Tensor:
    """Return the number of singular values above ``tolerance`` times the largest.

    ``values`` are (..., n), falling; the result is (...) int64, 0 for a zero matrix.
    """
    return (values > tolerance * values[..., :1]).sum(-1)


def kv_sum(attn: BaseAttention, call: Call) -> Optional[Tensor]:
    """Return the sum over the keys ``sum_j a_j rot(phi(k_j)) v_j^T`` that an attention keeps.

    Args:
        attn: any attention, in eval mode.
        call: what it was called with, an element of the list of
            :func:`mmlinattn.models.layers.attend_calls.calls_of`.

    Returns:
        (B, heads, m, d) float64: m features a head by d values. None unless the attention is a
        :class:`LinearAttention` (subclasses included), :class:`MLLAAttention`, :class:`RALA` or
        :class:`MALA`.
    """
    q, k, v, layout = call
    mask = layout.key_padding_mask
    if isinstance(attn, LinearAttention):
        q, k, v, options = _operator_call(attn, call)
    elif isinstance(attn, RALA):
        weights = attn.token_weights(k, layout)
        options = LinearOptions(mask, attn.eps, attn.feature_map, layout.rotary, 'rala', weights)
    elif isinstance(attn, MALA):
        options = LinearOptions(mask, attn.eps, attn.feature_map, layout.rotary)
    elif isinstance(attn, MLLAAttention):
        options = LinearOptions(mask, attn.eps, 'elu+1', rotary_over_heads(attn, layout))
    else:
        return None
    return kv_sum_reference(q.double(), k.double(), v.double(), options)


def _operator_call(
    attn: LinearAttention, call: Call
) -> Tuple[Tensor, Tensor, Tensor, LinearOptions]:
    """Return the features, values and options that linear attention gives to its operator."""
    taken: List[Tuple[Tensor, Tensor, Tensor, LinearOptions]] = []
    weigh = attn.weigh

    def keep(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        names = ('key_padding_mask', 'eps', 'feature_map', 'rotary')
        taken.append((q, k, v, LinearOptions(**{name: options[name] for name in names})))
        return weigh(q, k, v, **options)

    with patch.object(attn, 'weigh', keep):
        attn.attend(*call)
    return taken[0]


@torch.no_grad()
def layer_ranks(
    backbone: nn.Module, images: Sequence[Callable[[], Tensor]], tolerance: float = 0.01
) -> List[LayerRank]:
    """Return the ranks of the matrices of every attention of a backbone that runs.

    Singular values are computed in float64 from what the layers compute.

    Args:
        backbone: a backbone in eval mode.
        images: functions that return the input (1, 3, H, W) of the backbone, for one image each.
        tolerance: see :func:`numerical_rank`.

    Raises:
        ValueError: no attention of this package ran, or an output is not finite.

    Example:
        >>> from mmlinattn.models.backbones import RAVLT
        >>> model = RAVLT('tiny', norm_cfg=dict(type='BN')).eval()
        >>> first, *_ = layer_ranks(model, [lambda: torch.randn(1, 3, 64, 64)])
        >>> first.name, first.attention, first.tokens, first.spectra['kv_sum'].full
        ('stages.0.0.attn', 'RALA', [256], [64])
    """
    named = backbone.named_modules()
    layers = {name: module for name, module in named if isinstance(module, BaseAttention)}
    tokens: Dict[str, List[int]] = {name: [] for name in layers}
    # Singular values (heads, n) of each image, by layer and matrix.
    values: Dict[str, Dict[str, List[Tensor]]] = {name: {} for name in layers}

    def add(name: str, matrix: str, x: Tensor) -> None:
        x = x.double()
        # NaN instead of an error of the decomposition.
        found = torch.linalg.svdvals(x) if x.isfinite().all() else x.new_full((1, 1), torch.nan)
        values[name].setdefault(matrix, []).append(found.cpu())

    for image in images:
        with ExitStack() as stack:
            calls = {name: stack.enter_context(calls_of(attn)) for name, attn in layers.items()}
            for name, attn in layers.items():
                hook = attn.register_forward_hook(
                    lambda _, args, out, name=name: add(name, 'layer_output', out)
                )
                stack.enter_context(hook)
            backbone(image())
        for name, call in ((name, call) for name, found in calls.items() for call in found):
            tokens[name].append(call.q.shape[2])
            state = kv_sum(layers[name], call)
            if state is not None:
                add(name, 'kv_sum', state[0])
            add(name, 'head_output', layers[name].attend(*call)[0])
    if not any(tokens.values()):
        raise ValueError(
            f'the backbone {type(backbone).__name__} has no attention of this package; those of '
            'encoders and decoders behind it are not measured'
        )
    return [
        LayerRank(name, type(attn).__name__, tokens[name], {
            matrix: _spectrum(f'{matrix} of {name}', values[name][matrix], tolerance)
            for matrix in MATRICES
            if matrix in values[name]
        })
        for name, attn in layers.items()
        if tokens[name]
    ]  # fmt: skip


def _spectrum(name: str, values: List[Tensor], tolerance: float) -> Spectrum:
    if any(part.isnan().any() for part in values):
        raise ValueError(f'{name} is not finite: the weights have diverged, or an image has NaN')
    shortest = min(part.shape[-1] for part in values)
    largest = [part[:, :1].clamp(min=torch.finfo(part.dtype).tiny) for part in values]
    shares = torch.cat([part[:, :shortest] / top for part, top in zip(values, largest)])
    return Spectrum(
        ranks=[rank for part in values for rank in numerical_rank(part, tolerance).tolist()],
        full=[part.shape[-1] for part in values for _ in part],
        values=np.median(shares.numpy(), 0).tolist(),
    )

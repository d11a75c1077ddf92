"""Linear projections of attentions, checks for hooks, and GELU in place."""

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ...ops.common.numerics import constant, is_tracing
from .cpu_linear import CPULinear, onednn_linear


def is_unmodified(layer: nn.Module, cls: type) -> bool:
    """Return True if a layer is exactly of class ``cls``, without hooks and outside a trace.

    Any other layer (wrapped, quantised, with hooks) must be called.
    """
    return type(layer) is cls and not has_hooks(layer) and not is_tracing()


def has_hooks(layer: nn.Module) -> bool:
    """Return True if a call of this layer runs hooks, its own or global ones."""
    return has_own_hooks(layer) or bool(
        torch_modules._global_forward_hooks
        or torch_modules._global_forward_pre_hooks
        or torch_modules._global_backward_hooks
        or torch_modules._global_backward_pre_hooks
    )


def has_own_hooks(layer: nn.Module) -> bool:
    """Return True if this layer has hooks, or a function that replaces its ``forward``."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or 'forward' in layer.__dict__  # torch 2.4 cannot compile vars(layer)
    )


def apply_dropout(drop: nn.Module, x: Tensor) -> Tensor:
    """Return ``drop(x)``; dropout with rate 0 and without hooks is not called."""
    has_effect = type(drop) is not nn.Dropout or drop.p
    return drop(x) if has_effect or drop._forward_hooks or drop._forward_pre_hooks else x


def gelu_inplace_if_safe(layer: nn.Module, x: Tensor) -> Tensor:
    """Return GELU of x, the output of ``layer``, in place if no gradient or hook needs x.

    Allocating a new tensor costs more than the function.
    """
    plain = type(layer) in (nn.Linear, CPULinear, nn.Conv2d) and is_unmodified(layer, type(layer))
    needed = not plain or (x.requires_grad and torch.is_grad_enabled())
    return F.gelu(x) if needed else torch.ops.aten.gelu_(x)


class KeyBiaslessLinear(nn.Linear):
    """Projection to queries, keys, values and further parts in which keys have no bias.

    The bias has as many numbers as that of ``nn.Linear``, so that weights load into either; those
    of the keys are not read and get no gradient.
    """

    def __init__(self, embed_dims: int, parts: int) -> None:
        super().__init__(embed_dims, parts * embed_dims)

    def effective_bias(self) -> Tensor:
        """Return the bias with zeros for the keys."""
        is_key = constant(_is_key, self.bias.device, self.in_features, self.out_features)
        return self.bias.masked_fill(is_key, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., C) to (..., parts * C)."""
        return F.linear(x, self.weight, self.effective_bias())


def _is_key(channels: int, outputs: int, device: torch.device) -> Tensor:
    place = torch.arange(outputs, device=device)
    return (place >= channels) & (place < 2 * channels)


def projection_bias(layer: nn.Linear) -> Optional[Tensor]:
    """Return the bias that a projection adds."""
    return layer.effective_bias() if isinstance(layer, KeyBiaslessLinear) else layer.bias


# Projections whose rows are outputs that can be computed by themselves.
PLAIN = (nn.Linear, CPULinear, KeyBiaslessLinear)


def linear_parts(layer: nn.Linear, *inputs: Tuple[Tensor, int]) -> List[Tensor]:
    """Return consecutive outputs of a projection, each computed from another input.

    An adapter or a quantised layer in place of ``nn.Linear`` computes all outputs of each input,
    and the parts are sliced from them. So does a layer with hooks, such as those of
    ``torch.nn.utils.prune``, or a ``forward`` of its own. ``torch.jit.trace`` leaves hooks out:
    they are those of counters such as MMEngine's.
    Inputs are pairs of a tensor (..., C) and its number of outputs.
    """
    counts = [count for _, count in inputs]
    own = layer._parameters
    replaced = type(layer) not in PLAIN or 'weight' not in own or 'bias' not in own
    # The compiler first: it cannot trace the other question.
    counts_alone = not torch.compiler.is_compiling() and torch._C._is_tracing()
    counts_alone = counts_alone and 'forward' not in layer.__dict__
    if replaced or (has_own_hooks(layer) and not counts_alone):
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [layer(x)[..., end - n : end] for (x, n), end in zip(inputs, ends)]
    weight, bias = layer.weight, projection_bias(layer)
    device = weight.device.type
    if device != 'meta' and torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
        # Cast once: autocast would cast each part.
        dtype = torch.get_autocast_dtype(device)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    rest = weight.shape[0] - sum(counts)
    counts += [rest] if rest else []
    weights = torch.split_with_sizes(weight, counts)
    biases = [None] * len(counts) if bias is None else torch.split_with_sizes(bias, counts)
    product = onednn_linear if type(layer) is CPULinear else F.linear
    return [product(x, w, b) for (x, _), w, b in zip(inputs, weights, biases)]

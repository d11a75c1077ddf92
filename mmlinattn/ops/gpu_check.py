"""Comparison of the kernels with float64 on a GPU, for ``mmlinattn doctor --gpu``."""

from functools import partial
from itertools import product
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from .. import ops

MAP = (21, 31)  # an odd number of tokens, several chunks
BATCH, HEADS, DIM = 2, 3, 64
# Relative errors of outputs and of gradients, about ten times those in Triton's interpreter.
TOLERANCES = {
    torch.float32: (1e-4, 2e-3), torch.float16: (4e-3, 2e-2), torch.bfloat16: (3e-2, 1e-1),
}  # fmt: skip


class Finding(NamedTuple):
    """Result of one comparison: relative errors, the largest one of the gradients."""

    operator: str
    dtype: torch.dtype  # of the tokens
    output: float = 0.0
    gradients: float = 0.0
    problem: str = ''
    is_unsupported: bool = False  # the kernels do not serve such a call on this GPU


# Computes the output from a padding mask, a backend and q, k, v and further tensors.
Call = Callable[..., Tensor]


def check_kernels(device: torch.device) -> Iterator[Finding]:
    """Yield comparisons of every operator's output and gradients with its torch form in float64.

    ``device`` is a CUDA device, or the CPU with Triton's interpreter.
    """
    for dtype, (name, (call, shapes)) in product(TOLERANCES, _calls().items()):
        generator = torch.Generator().manual_seed(0)
        tensors = [torch.randn(s, generator=generator) for s in shapes]
        try:
            tensors = [x.to(device, dtype) for x in tensors]  # fails after an error of the device
            yield _compare(name, call, tensors)
        except ops.BackendError as error:
            yield Finding(name, dtype, problem=str(error), is_unsupported=True)
        except Exception as error:  # compilers, drivers and launchers raise arbitrary exceptions
            yield Finding(name, dtype, problem=' '.join(f'{error}'.split())[:300])


def _compare(name: str, call: Call, tensors: Sequence[Tensor]) -> Finding:
    dtype = tensors[0].dtype
    mask = torch.zeros(BATCH, tensors[0].shape[2], dtype=torch.bool, device=tensors[0].device)
    mask[0, -(mask.shape[1] // 3) :] = True
    found, again = (_step(call, mask, 'triton', tensors) for _ in range(2))
    exact = _step(call, mask, 'torch', [x.double() for x in tensors])
    errors, problems = [], []
    for i, (a, b) in enumerate(zip(found, exact)):
        errors.append(float((a.double() - b).norm() / b.norm().clamp(min=1e-12)))
        limit = TOLERANCES[dtype][min(i, 1)]
        if not errors[i] <= limit:  # NaN is wrong, too
            what = 'a gradient' if i else 'the output'
            problems.append(
                f'{what} differs from float64 by {errors[i]:.1e}, more than {limit:.0e}'
            )
    if not torch.equal(found[0], again[0]):
        problems.append('the output changes from run to run')
    gradients = max(errors[1:], key=lambda x: (x != x, x))  # NaN is the largest
    return Finding(name, dtype, errors[0], gradients, '; '.join(problems))


def _step(call: Call, mask: Tensor, backend: str, tensors: Sequence[Tensor]) -> List[Tensor]:
    """Return the output and the gradients of the tensors."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = call(mask, backend, *leaves)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator).to(out)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def _calls() -> Dict[str, Tuple[Call, List[Tuple[int, ...]]]]:
    """Return the calls by operator, and the shapes of their tensors."""
    tokens = (BATCH, HEADS, MAP[0] * MAP[1], DIM)
    anchors = (HEADS, 49, DIM)
    rotary, packed = ops.Rotary(MAP, DIM), ops.PackedShapes([MAP, (5, 7)])

    def masked(operator, **options):
        return lambda mask, *rest: unmasked(operator, key_padding_mask=mask, **options)(mask, *rest)

    def unmasked(operator, **options):
        return lambda mask, backend, *tensors: operator(*tensors, backend=backend, **options)

    def walk(mask, backend, q, k, v, *anchors, steps):
        options = dict(steps=steps, key_padding_mask=mask, backend=backend)
        return ops.random_walk_attention(q, k, v, *(0.3 * x for x in anchors), **options)

    def ripple(mask, backend, q, k, v, weights):
        features, options = (q.sigmoid(), k.sigmoid()), dict(hw_shape=MAP, key_padding_mask=mask)
        return ops.ripple_attention(*features, v, weights.sigmoid(), backend=backend, **options)

    def adaptive(mask, backend, q, k, frequencies, weight, bias):
        # Near the edge of a ReLU rounding decides if there is a gradient.
        learnt = frequencies, 0.1 * weight, 0.1 * bias + 3
        return torch.cat(ops.adaptive_features(q, k, *learnt, backend=backend), 2)

    of_packed, other = (1, HEADS, packed.num_tokens, DIM), (BATCH, HEADS, 333, DIM)
    return {
        'linear attention': (masked(ops.linear_attention, feature_map='elu+1'), [tokens] * 3),
        'RALA': (masked(ops.rala_attention, rotary=rotary), [tokens] * 3),
        'RALA, packed images': (
            unmasked(ops.rala_attention, rotary=ops.Rotary(packed, DIM), packed=packed),
            [of_packed] * 3,
        ),
        'RALA, cross-attention': (unmasked(ops.rala_attention, cross=True), [tokens, other, other]),
        'MALA': (masked(ops.mala_attention, rotary=rotary), [tokens] * 3),
        'random walk': (partial(walk, steps=None), [*[tokens] * 3, anchors, anchors]),
        'random walk, one step': (partial(walk, steps=1), [*[tokens] * 3, anchors, anchors]),
        'ripple attention': (ripple, [*[tokens] * 3, (*tokens[:3], 5)]),
        'learnt features': (adaptive, [tokens, tokens, (DIM, DIM), (DIM, 2 * DIM), (DIM,)]),
    }  # fmt: skip

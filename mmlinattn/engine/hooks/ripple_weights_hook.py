"""Hook that logs how far the ring weights of ripple attention are from fixed and equal ones."""

from contextlib import ExitStack
from functools import partial
from typing import Any, Dict, Optional

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from ...models.layers import RippleAttention
from ...models.layers.attend_calls import Call, watch_attend
from ...ops.ripple import fixed_weights
from ...utils import check_integer
from ...utils.errors import InputError
from ..model import unwrapped

MEASURES = {  # logged as ripple/MEASURE/LAYER -> title of its curves
    'js_fixed': 'divergence from 1/2, 1/4, ..., nats',
    'js_uniform': 'divergence from equal weights, nats',
    'entropy': 'entropy, nats',
}


@HOOKS.register_module()
class RippleWeightsHook(Hook):
    """Hook that logs the ring weights of each :class:`RippleAttention` while it learns, figure 3 of
    "Ripple Attention for Visual Perception with Sub-quadratic Complexity" (Zheng et al., ICML
    2022).

    Each token has R + 1 weights in each head, which sum to 1. Three numbers are logged per layer,
    in nats, as means over tokens, heads and images of one iteration on all processes:

    - ``ripple/js_fixed/LAYER``: Jensen-Shannon divergence from 1/2, 1/4, ..., 2^-R, 2^-R, the
      weights of ``weights='fixed'``;
    - ``ripple/js_uniform/LAYER``: the divergence from equal weights 1 / (R + 1);
    - ``ripple/entropy/LAYER``: entropy of the weights.

    A divergence is between 0 and ln 2 = 0.69, the entropy between 0 (one ring) and ln(R + 1) (equal
    weights). LAYER is the name of the layer in the model, such as ``backbone.layers.0.attn``.
    Padded tokens and extra tokens are left out. Weights of ``weights='truncated'`` are divided by
    their sum. The training has the same result without the hook, which costs nothing between two
    logs.

    Args:
        interval: iterations between two logs; the first iteration is always logged.

    Raises:
        ValueError: ``interval`` is not a positive integer.
        InputError: when the training starts, the model has no ripple attention that learns weights.

    Example:
        >>> custom_hooks = [dict(type='RippleWeightsHook', interval=50)]
    """

    def __init__(self, interval: int = 50) -> None:
        self.interval = check_integer('RippleWeightsHook.interval', interval)
        self.layers: Dict[str, RippleAttention] = {}
        self.watching = ExitStack()
        self.totals: Optional[Tensor] = None

    def before_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, RippleAttention) and module.weights != 'fixed'
            if module.max_distance > 0
        }
        if not self.layers:
            raise InputError(
                f'RippleWeightsHook: {type(model).__name__} has no RippleAttention that learns '
                "weights: set attn_cfg='RippleAttention', or remove the hook from custom_hooks"
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if not self._logs_at(runner.iter):
            return
        layers = self.layers.values()
        device = next(layer.units.device for layer in layers)
        # Sums of the measures, and how many weights were added.
        self.totals = torch.zeros(
            len(layers), len(MEASURES) + 1, dtype=torch.float64, device=device
        )
        for total, layer in zip(self.totals, layers):
            self.watching.enter_context(watch_attend(layer, partial(_add, total, layer)))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict] = None
    ) -> None:
        if not self._logs_at(runner.iter):
            return
        assert self.totals is not None  # made before this iteration
        self.watching.close()
        all_reduce(self.totals)
        done, values = runner.iter + 1, {}
        for layer, (*sums, count) in zip(self.layers, self.totals.tolist()):
            if count:  # the layer ran
                for name, total in zip(MEASURES, sums):
                    values[f'ripple/{name}/{layer}'] = total / count
        runner.message_hub.update_scalars(values)
        # As LoggerHook: lines of a training have the iteration.
        runner.visualizer.add_scalars(dict(values, iter=done), step=done)

    def _logs_at(self, iteration: int) -> bool:
        return iteration == 0 or (iteration + 1) % self.interval == 0


@torch.no_grad()
def _add(total: Tensor, layer: RippleAttention, call: Call) -> None:
    """Add the measures of the tokens of a call, and their number, to ``total`` (4,)."""
    layout = call.tokens.without_extra_tokens()
    values = call.tokens.split_extra(call.v, 2)[1].to(layer.units.dtype)
    # Autocast would keep the cast parameters, without their gradient, for the layer itself.
    with torch.autocast(values.device.type, enabled=False):
        weights = layer.spatial_weights(values)
    measures = measure_weights(weights)  # [B, heads, N, 3]
    real = torch.ones_like(measures[..., :1], dtype=torch.bool)
    if layout.key_padding_mask is not None:
        real &= ~layout.key_padding_mask[:, None, :, None]
    total += torch.cat([measures.where(real, 0), real], -1).sum((0, 1, 2))


def measure_weights(weights: Tensor) -> Tensor:
    """Return the :data:`MEASURES` (..., 3) of weights (..., R + 1), in float64."""
    weights = weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    fixed = fixed_weights(weights.shape[-1] - 1).to(weights)
    equal = torch.full_like(fixed, 1 / len(fixed))
    divergences = [  # of Jensen and Shannon
        _entropy((weights + other) / 2) - (_entropy(weights) + _entropy(other)) / 2
        for other in (fixed, equal)
    ]
    return torch.stack([*divergences, _entropy(weights)], -1)


def _entropy(p: Tensor) -> Tensor:
    """Return the entropy of distributions (..., K), in nats."""
    return torch.special.entr(p).sum(-1)

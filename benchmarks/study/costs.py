"""Parameters, products, time and memory of models."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict

import torch
from mmengine.config import Config
from mmengine.device import get_device
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.measure import Spread, interleave, peak_memory
from mmlinattn.analysis import analyse
from mmlinattn.analysis.complexity import Forward
from mmlinattn.engine.model import initial_model


@dataclass(frozen=True)
class CostColumn:
    """Measured quantity of a model."""

    name: str
    key: str
    factor: float = 1.0
    digits: int = 2


COSTS = (
    CostColumn('parameters, M', 'params', 1e-6),
    CostColumn('G, conv + linear', 'conv_linear', 1e-9),
    CostColumn('G, all products', 'total', 1e-9),
    CostColumn('ms an image', 'ms'),
    CostColumn('MiB, forward + backward', 'bytes', 2**-20, 0),
)


def measure(configs: Dict[str, Config], cost: dict) -> Dict[str, dict]:
    """Measure models alternately, so that a temporary slowdown affects all.

    Args:
        configs: by name; the weights are random.
        cost: ``shape`` of the image, ``batch`` of the timed forward pass and ``rounds``.

    Returns:
        by name ``params``; ``conv_linear`` and ``total``, the multiply-accumulates of an image in
        the two conventions of the papers; ``ms`` an image, median and quartiles: processor time of
        one thread, on a GPU time of the device; ``bytes``, the peak of a forward and backward pass
        of the network with this batch, beyond the weights.
    """
    device = torch.device(get_device())
    images = torch.randn(cost['batch'], 3, *cost['shape'], device=device)
    models = {name: initial_model(cfg, device=str(device)) for name, cfg in configs.items()}
    calls = {name: partial(torch.no_grad()(Forward(m)), images) for name, m in models.items()}
    for call in calls.values():
        call()
    times = interleave(calls, device, cost['rounds'], 0.0, processor_time=True)
    found = {}
    for name, model in models.items():
        counts = analyse(model, cost['shape'])
        spread = Spread.of([1e3 * seconds / cost['batch'] for seconds in times[name]])
        found[name] = dict(
            params=counts.params,
            conv_linear=counts.conv_linear,
            total=counts.total,
            ms=[spread.median, spread.low, spread.high],
            bytes=peak_memory(_step(model, images), device),
        )
    return found


def _step(model: nn.Module, images: Tensor) -> Callable[[], object]:
    runner = Forward(model)

    def step() -> object:
        outputs = [out for out in tree_leaves(runner(images)) if isinstance(out, Tensor)]
        loss = sum(out.float().square().mean() for out in outputs if out.requires_grad)
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    return step

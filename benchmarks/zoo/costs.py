"""Time and memory of the models: a separate step, because timing needs an idle machine."""

import json
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import torch
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from benchmarks.measure import Spread, forward, interleave, peak_memory
from mmlinattn.engine.runner.allocator import keep_freed_memory
from mmlinattn.utils import whole_file

from .plan import SIDE, Job, Sizes, config
from .training import facts

CPU = torch.device('cpu')
BATCH, BATCH_TRAINING = 16, 32


def measure(folder: Path, models: Dict[str, Sequence[str]], rounds: int) -> dict:
    """Measure the attentions of each host alternately and overwrite ``costs.json``.

    Args:
        models: names of attentions by host.
        rounds: calls per attention.

    Returns:
        machine, versions, commit and rounds, and by host and attention ``params``, ``ms`` per
        image of a forward pass (median, quartiles) and ``bytes`` of a training step.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    hosts: Dict[str, dict] = {}
    for host, names in models.items():
        classifiers = {name: build(host, name) for name in names}
        images = torch.randn(BATCH, 3, SIDE, SIDE)
        calls = {name: _forward(model, images) for name, model in classifiers.items()}
        for call in calls.values():
            call()
        times = interleave(calls, CPU, rounds, 0.0)
        hosts[host] = {}
        for name, model in classifiers.items():
            spread = Spread.of([1e3 * seconds / BATCH for seconds in times[name]])
            hosts[host][name] = dict(
                params=sum(parameter.numel() for parameter in model.parameters()),
                ms=[spread.median, spread.low, spread.high],
                bytes=peak_memory(_step(model), CPU),
            )
    costs = dict(facts(), rounds=rounds, hosts=hosts)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / 'costs.json') as temporary:
        temporary.write_text(json.dumps(costs, indent=1) + '\n')
    return costs


def read(folder: Path) -> dict:
    """Return the last measurement, or an empty dict."""
    path = folder / 'costs.json'
    return json.loads(path.read_text()) if path.is_file() else {}


def complete(found: dict, models: Dict[str, Sequence[str]], rounds: int) -> bool:
    """Return True if every model has been measured with ``rounds`` calls."""
    hosts = found.get('hosts', {})
    return found.get('rounds') == rounds and all(
        name in hosts.get(host, {}) for host, names in models.items() for name in names
    )


def build(host: str, attention: str) -> nn.Module:
    """Return the untrained classifier for Shapes, in eval mode."""
    cfg = config(Job(host, 'shapes', attention, 0), Path(), Sizes())
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model).eval()


def _forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    return lambda: forward(lambda: model(images, mode='tensor'))


def _step(model: nn.Module) -> Callable[[], List[Tensor]]:
    images = torch.randn(BATCH_TRAINING, 3, SIDE, SIDE)

    def step() -> List[Tensor]:
        model.train()
        loss = model(images, mode='tensor').logsumexp(-1).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        model.eval()
        return list(gradients)

    return step

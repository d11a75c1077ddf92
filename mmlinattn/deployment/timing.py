"""Latency of a model in torch and of its exported files, on the same image."""

import statistics
from functools import partial
from typing import Callable, List, NamedTuple, Sequence, Tuple

import torch
from mmengine.config import Config
from torch import Tensor

from ..analysis.timing import repeat
from ..models.layers import optimize_for_cpu
from .compare import difference, fit
from .deployable import load
from .exported_file import ExportedFile, FileError, Outputs
from .file_checks import check_model


class Timing(NamedTuple):
    """Milliseconds per call, and the largest difference of the outputs from torch's."""

    name: str
    median: float
    p90: float
    difference: float


def latency(
    cfg: Config, checkpoint: str, files: Sequence[str], shape: Sequence[int], image: Tensor,
    seconds: float = 5.0, rounds: int = 1,
) -> List[Timing]:  # fmt: skip
    """Time the model in torch, then each file, with one image per call, after warm-up calls.

    Args:
        cfg, checkpoint: config and checkpoint of the model.
        files: see :class:`.exported_file.ExportedFile`.
        shape: (H, W).
        image: (1, 3, h, w) float32, RGB, 0..255; resized to ``shape``.
        seconds: measuring time of the model and of each file, per round.
        rounds: number of rounds. The round with the lowest median is reported, the one least
            disturbed by other programs.

    Raises:
        ValueError: ``rounds`` is below 1.
        FileError: a file does not take the shape, belongs to another model (see
            :func:`.file_checks.check_model`), or only some files have raw outputs. Errors of
            :func:`.deployable.load` and :class:`.exported_file.ExportedFile` are raised unchanged.
    """
    if rounds < 1:
        raise ValueError(f'rounds must be at least 1: {rounds}')
    ready = [ExportedFile(path) for path in files]
    image = fit(image, shape)
    for file in ready:
        file.check(image)
    raw = bool(ready) and ready[0].metadata.raw
    for file in ready:
        if file.metadata.raw != raw:
            raise FileError(
                f'{file.path} and {ready[0].path} cannot be compared: one of them has raw outputs'
            )
    model, _ = load(cfg, checkpoint, raw)
    for file in ready:
        check_model(file, model.model, cfg)
    optimize_for_cpu(model.model)
    calls: List[Tuple[str, Callable[[], Outputs]]] = [('torch', lambda: model(image))]
    calls += [(file.path.name, partial(file, image)) for file in ready]
    with torch.no_grad():
        times = [[_times(call, seconds) for _, call in calls] for _ in range(rounds)]
        expected = model(image)
        return [
            Timing(name, median, p90, difference(call(), expected))
            for (name, call), (median, p90) in zip(calls, map(min, zip(*times)))
        ]


def _times(call: Callable[[], object], seconds: float) -> Tuple[float, float]:
    """Return the median and the 90th percentile in milliseconds."""
    device = torch.device('cpu')
    repeat(call, device, seconds / 5, least=1)
    times = repeat(call, device, seconds, least=5)
    return 1e3 * statistics.median(times), 1e3 * statistics.quantiles(times, n=10)[-1]

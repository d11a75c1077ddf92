"""Images a second of a model."""

import time
from dataclasses import dataclass
from typing import Callable, List, Sequence

import numpy as np
import torch
from torch import nn

# Autocast dtype of a precision; float32 runs without.
AUTOCAST = dict(bf16=torch.bfloat16, fp16=torch.float16)
LEAST_CALLS = 3
# Share of the limit of a batch size for the calls that are measured.
MEASURED = 1 / 6


@dataclass(frozen=True)
class Throughput:
    """Result of :func:`throughput`.

    Args:
        batch: images per call.
        seconds: time of each call.
    """

    batch: int
    seconds: List[float]

    def images_a_second(self, quantile: float = 0.5) -> float:
        """Return the images a second, by default the median over the calls."""
        return float(np.quantile(self.batch / np.asarray(self.seconds), quantile))

    def to_dict(self) -> dict:
        """Return median and quartiles of the images a second, and the times, for JSON."""
        names = dict(images_a_second=0.5, low=0.25, high=0.75)
        speeds = {name: self.images_a_second(quantile) for name, quantile in names.items()}
        return dict(batch=self.batch, **speeds, seconds=self.seconds)


@torch.no_grad()
def throughput(
    model: nn.Module,
    batch: int,
    shape: Sequence[int],
    device: torch.device,
    *,
    precision: str = 'fp32',
    limit: float = 60.0,
) -> Throughput:
    """Time a model on random images, at least three calls after one of warm-up.

    Args:
        model: a module that takes (B, 3, H, W), in eval mode, on ``device``.
        batch: images per call.
        shape: (H, W).
        device: where to run.
        precision: ``'fp32'``, or ``'bf16'`` or ``'fp16'`` for autocast.
        limit: most seconds, a sixth of them for the calls that are measured. No call is
            interrupted.

    Raises:
        TimeoutError: the calls take longer than ``limit``.

    Example:
        >>> model = nn.Conv2d(3, 8, 3).eval()
        >>> found = throughput(model, 2, (32, 32), torch.device('cpu'), limit=0.6)
        >>> found.batch, len(found.seconds) >= 3, found.images_a_second() > 0
        (2, True, True)
    """
    height, width = shape
    dtype = AUTOCAST.get(precision)

    def call() -> object:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            return model(images)

    start = time.perf_counter()
    images = torch.randn(batch, 3, height, width, device=device)
    times = [seconds_of(call, device)]  # the first one is the warm-up
    end = time.perf_counter() + limit * MEASURED
    while len(times) <= LEAST_CALLS or time.perf_counter() < end:
        if time.perf_counter() - start > limit:
            raise TimeoutError(
                f'batch size {batch} at {height} x {width}: {1 + LEAST_CALLS} calls take more than '
                f'{limit:g} s (the first one {times[0]:.1f} s): take a smaller batch or image, or '
                'a larger limit'
            )
        times.append(seconds_of(call, device))
    return Throughput(batch, times[1:])


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, with the work that it queues on a GPU."""
    _synchronize(device)
    start = time.perf_counter()
    call()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)

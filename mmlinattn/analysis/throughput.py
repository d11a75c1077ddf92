"""Images a second of a model."""

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Iterator, List, Sequence

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
        """Return the images a second, by default the median over the calls.

        Example:
            >>> Throughput(8, [2.0, 1.0, 4.0]).images_a_second()
            4.0
        """
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
        limit: most seconds, a sixth of them for the calls that are measured.

    Raises:
        TimeoutError: the calls take longer than ``limit``.

    Example:
        >>> model = nn.Conv2d(3, 8, 3).eval()
        >>> found = throughput(model, 2, (32, 32), torch.device('cpu'), limit=0.6)
        >>> found.batch, len(found.seconds) >= 3, found.images_a_second() > 0
        (2, True, True)
    """
    height, width = shape
    what = f'batch size {batch} at {height} x {width}'
    dtype = AUTOCAST.get(precision)

    def call() -> object:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            return model(images)

    times: List[float] = []  # the first one is the warm-up
    try:
        with time_limit(limit):
            images = torch.randn(batch, 3, height, width, device=device)
            times.append(seconds_of(call, device))
            end = time.perf_counter() + limit * MEASURED
            while len(times) <= LEAST_CALLS or time.perf_counter() < end:
                times.append(seconds_of(call, device))
            return Throughput(batch, times[1:])
    except TimeoutError as error:
        calls = f'the first one {times[0]:.1f} s' if times else 'the first one did not end'
        raise TimeoutError(
            f'{what}: {1 + LEAST_CALLS} calls take more than {limit:g} s ({calls}): take a smaller '
            'batch or image, or a larger limit'
        ) from error


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


class _TimeIsUp(BaseException):
    """No ``Exception``: the first check of a kernel would take it for a fault of the kernel."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after so many seconds, between two operators.

    Only the main thread can be interrupted; in another one the block has no limit.

    Example:
        >>> import time
        >>> with time_limit(0.05):
        ...     time.sleep(1)
        Traceback (most recent call last):
            ...
        TimeoutError
    """

    def end(*_: object) -> None:
        raise _TimeIsUp

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeIsUp:
        raise TimeoutError from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

"""Time and memory of calls, on the CPU or a GPU."""

import os
import time
import warnings
from itertools import accumulate
from typing import Callable, List

import torch
from torch.profiler import ProfilerActivity, profile


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


def repeat(
    call: Callable[[], object],
    device: torch.device,
    seconds: float,
    least: int,
    advance: Callable[[], object] = lambda: None,
) -> List[float]:
    """Return the seconds of each of several calls.

    Args:
        call: the call, warmed up.
        device: device of its work.
        seconds: measure until so much time has passed.
        least: smallest number of calls, which may take longer.
        advance: called after each call.

    Example:
        >>> len(repeat(lambda: None, torch.device('cpu'), 0.0, least=3))
        3
    """
    times: List[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        times.append(seconds_of(call, device))
        advance()
    return times


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Return the peak of torch's allocations in a call, beyond those before it.

    Example:
        >>> peak_bytes(lambda: torch.ones(2**20), torch.device('cpu'))
        4194304
    """
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # without a message that there is no GPU
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == '[memory]']
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0))

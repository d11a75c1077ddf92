"""Duration of a call."""

import time
from typing import Callable

import torch


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

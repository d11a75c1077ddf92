"""Timing with CUDA graphs and with the host's work, which ``benchmarks/measure.py`` leaves out."""

from typing import Callable, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

WARM_UP = 3


def captured(
    call: Callable[[], Sequence[Tensor]],
) -> Tuple[Callable[[], None], Callable[[], Sequence[Tensor]]]:
    """Record a call as a CUDA graph and return its replay function and a getter of its results.

    Every replay writes the results to the same tensors.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):  # compiles kernels and fills caches
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        results.append(call())
    return graph.replay, lambda: results[0]


def wall(call: Callable[[], object], seconds: float = 0.1) -> float:
    """Return the median seconds per call in sequences of calls, with the host's work.

    Args:
        seconds: measure for so long.
    """
    threads = torch.get_num_threads()
    timer = Timer('call()', globals=dict(call=call), num_threads=threads)
    return timer.blocked_autorange(min_run_time=seconds).median

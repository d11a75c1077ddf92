"""Timing with CUDA graphs and with the host's work, which ``benchmarks/measure.py`` leaves out.

``torch.utils.benchmark`` imports setuptools, but gpu.py goes with torch and triton alone.
"""

import time
from typing import Callable, List, Sequence, Tuple

import torch
from torch import Tensor

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


def wall(
    call: Callable[[], object], synchronize: Callable[[], None], seconds: float = 0.1
) -> float:
    """Return the seconds per call in a sequence of calls, with the host's work.

    The result is the median of several series.
    """
    series: List[float] = []
    call()
    synchronize()
    begin, count = time.perf_counter(), 10
    while len(series) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        series.append((time.perf_counter() - start) / count)
        if time.perf_counter() - begin > 10 * seconds:  # slow calls
            break
    return sorted(series)[len(series) // 2]

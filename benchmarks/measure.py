"""Time and peak memory of several calls, measured alternately in one process."""

import ctypes
import gc
import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Callable, Dict, List, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

# Larger than the last cache of any card, so that each call starts with cold caches.
FLUSH_BYTES = 512 * 2**20
COPY_BYTES = 2**30
# Minimal wait of the device; longer waits are twice the time that the last call took to queue.
MIN_WAIT = 1e-3
# On a CPU, calls below the second number of seconds follow an untimed one if the fastest is below
# the first: they would pay for the caches that the call before them emptied.
FASTEST, WARM_UP = 0.05, 0.5


def keep_freed_memory() -> None:
    """Make glibc keep memory freed by CPU tensors until the process ends.

    By default it returns blocks larger than 32 MiB to the system, which clears each page again at
    its next use. ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647`` in the environment does
    the same for any program.
    """
    trim_threshold, mmap_max = -1, -4  # parameter numbers of mallopt(3)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, -1)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample.

    Example:
        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 50.0])
        Spread(median=3.0, low=2.0, high=4.0)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> 'Spread':
        if len(sample) == 1:
            return cls(*3 * sample)
        low, median, high = statistics.quantiles(sample, method='inclusive')
        return cls(median, low, high)


def interleave(
    calls: Dict[str, Callable[[], object]],
    device: torch.device,
    min_rounds: int = 5,
    min_seconds: float = 1.0,
    max_rounds: int = 200,
    processor_time: bool = False,
) -> Dict[str, List[float]]:
    """Time calls alternately, A B C A B C, so that a temporary slowdown affects all.

    The calls must have run before (warm-up).

    Args:
        calls: by name; each returns when its work is done or, on a GPU, queued.
        device: device of the calls; on a GPU the time is that of the device, with cold caches, on
            a CPU a short call follows an untimed one of the same name.
        min_rounds: minimal number of rounds.
        min_seconds: measure more rounds until this total time, up to ``max_rounds``.
        processor_time: on the CPU, count the processor time of all threads of this process, which
            other processes change little.

    Returns:
        seconds of every call, by name.

    Example:
        >>> times = interleave({'a': lambda: None}, torch.device('cpu'), 3, 0.0)
        >>> len(times['a'])
        3
    """
    timer = time.process_time if processor_time else time.perf_counter
    on_cpu = device.type != 'cuda'
    clock = partial(_seconds, timer) if on_cpu else _cuda_clock(device)
    short = _short(calls) if on_cpu else set()
    times = {name: [] for name in calls}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for done in range(max_rounds):
            if done >= min_rounds and sum(map(sum, times.values())) >= min_seconds:
                break
            for name, call in calls.items():
                if name in short:
                    call()
                times[name].append(clock(call))
    finally:
        if was_enabled:
            gc.enable()
    return times


def _short(calls: Dict[str, Callable[[], object]]) -> Set[str]:
    """Return the names of the calls that follow an untimed one, by one call of each."""
    seconds = {name: _seconds(time.perf_counter, call) for name, call in calls.items()}
    if min(seconds.values(), default=0.0) >= FASTEST:
        return set()
    return {name for name in calls if seconds[name] < WARM_UP}


def _seconds(timer: Callable[[], float], call: Callable[[], object]) -> float:
    start = timer()
    result = call()
    seconds = timer() - start
    del result
    return seconds


def _cuda_clock(device: torch.device) -> Callable[[Callable[[], object]], float]:
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait = _cuda_wait(device)
    queueing: Dict[int, float] = {}

    def clock(call: Callable[[], object]) -> float:
        torch.cuda.synchronize(device)
        scratch.zero_()  # fills the caches
        # The device starts when all is queued, so that only its own time is measured.
        wait(max(MIN_WAIT, 2 * queueing.get(id(call), 0.01)))
        start.record()
        begin = time.perf_counter()
        result = call()
        queueing[id(call)] = time.perf_counter() - begin
        end.record()
        torch.cuda.synchronize(device)
        del result
        return start.elapsed_time(end) / 1e3

    return clock


def _cuda_wait(device: torch.device) -> Callable[[float], None]:
    """Return a function that keeps the device busy for some seconds and returns at once."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 10**7
    for _ in range(2):  # the first wakes the device up
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize(device)
    rate = cycles / (start.elapsed_time(end) / 1e3)
    return lambda seconds: torch.cuda._sleep(int(seconds * rate))


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Return the peak of torch's allocations during a call, in bytes above those before it.

    The result of the call counts. On the CPU torch's profiler records every allocation; scratch
    memory of libraries with their own allocator is not included. Apart from the package's own
    function, since gpu.py goes with torch alone.

    Example:
        >>> peak_memory(lambda: torch.empty(250) + 1, torch.device('cpu'))
        2048
    """
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == '[memory]']
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0))


def captured(
    call: Callable[[], Sequence[Tensor]],
) -> Tuple[Callable[[], None], Callable[[], Sequence[Tensor]]]:
    """Record a call as a CUDA graph and return its replay function and a getter of its results.

    Every replay writes the results to the same tensors.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles kernels and fills caches
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        results.append(call())
    return graph.replay, lambda: results[0]


def wall(
    call: Callable[[], object],
    synchronize: Callable[[], None],
    seconds: float = 0.05,
    calls: int = 10,
) -> float:
    """Return the seconds of a call with the host's work: the median of at least three series.

    ``torch.utils.benchmark`` imports setuptools, which a GPU machine may lack.

    Example:
        >>> wall(lambda: None, lambda: None, 0.0) < 0.1
        True
    """
    series: List[float] = []
    call()
    synchronize()
    begin = time.perf_counter()
    while len(series) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        series.append((time.perf_counter() - start) / calls)
    return statistics.median(series)


def copy_bandwidth(device: torch.device, rounds: int = 20, size: int = COPY_BYTES) -> float:
    """Return the bytes per second, read and written, of copying a tensor of ``size`` bytes."""
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = interleave({'copy': lambda: target.copy_(source)}, device, rounds, 0.0)['copy']
    return 2 * size / statistics.median(times)


def slope(tokens: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent ``p`` of the least-squares fit ``value = c tokens^p``."""
    return statistics.linear_regression([*map(math.log, tokens)], [*map(math.log, values)]).slope


def difference(tensor: Tensor, other: Tensor) -> float:
    """Return the norm of the difference over the norm of ``other``, in float64."""
    if tensor.shape != other.shape:
        return float('inf')
    tensor, other = tensor.detach().double(), other.detach().double()
    error, norm = (tensor - other).norm(), other.norm()
    return float(error / norm) if norm > 0 else float(error)


def forward(call: Callable[[], object]) -> Tuple[Tensor, ...]:
    """Return the outputs, computed without autograd graph."""
    with torch.no_grad():
        return _as_tuple(call())


def forward_backward(
    call: Callable[[], object], wanted: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Tuple[Tuple[Tensor, ...], Tuple[Tensor, ...]]:
    """Return the outputs, and the gradients of ``wanted`` for output gradients ``cotangents``."""
    outs = _as_tuple(call())
    grads = torch.autograd.grad(outs, wanted, cotangents)
    return tuple(out.detach() for out in outs), grads


def _as_tuple(result: object) -> Tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)

import time
from functools import partial

import pytest
import torch

from benchmarks import measure
from benchmarks.measure import Spread, difference, forward_backward, interleave, peak_memory, slope

CPU = torch.device('cpu')
MIB = 2**20


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MIB), dtype=torch.int8)


def test_peak_memory_counts_what_lives_at_the_same_time():
    def call():
        first = megabytes(3)
        second = megabytes(4)
        del first
        third = megabytes(2)
        return second, third

    # 3 + 4 at first, 4 + 2 at the end.
    assert peak_memory(call, CPU) == 7 * MIB


def test_peak_memory_counts_temporaries_inside_operators():
    x = torch.ones(MIB // 4)
    # x + 1, then its exponential beside it.
    assert peak_memory(lambda: (x + 1).exp(), CPU) == 2 * MIB
    # Not zero: the number 1 becomes a tensor.
    assert peak_memory(lambda: x.add_(1), CPU) < 100


def test_peak_memory_does_not_count_what_was_there_or_is_freed():
    there = [megabytes(8)]

    def call():
        there.clear()
        return megabytes(5)

    assert peak_memory(call, CPU) <= 5 * MIB
    assert peak_memory(lambda: None, CPU) == 0


def test_peak_memory_sees_the_graph_of_a_training_step():
    x = torch.ones(MIB // 4, requires_grad=True)

    def call():
        return forward_backward(lambda: x.exp(), (x,), (torch.ones_like(x),))

    # The cotangent, the result that is kept, the gradient.
    assert peak_memory(call, CPU) == 3 * MIB


def test_processor_time_is_not_that_of_waiting():
    calls = dict(sleep=lambda: time.sleep(0.05))
    (wall,) = interleave(calls, CPU, 1, 0.0)['sleep']
    (busy,) = interleave(calls, CPU, 1, 0.0, processor_time=True)['sleep']
    assert wall >= 0.05 > 5 * busy


def test_calls_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in 'abc'}
    times = interleave(calls, CPU, min_rounds=4, min_seconds=0.0)
    # A round to see which are short, which then follow an untimed call of their own.
    assert order == list('abc') + list('aabbcc') * 4
    assert {name: len(sample) for name, sample in times.items()} == dict(a=4, b=4, c=4)


@pytest.mark.parametrize(
    'seconds, expected',
    [
        (dict(a=0.001, b=0.04, c=0.07), 'aabbcc'),  # rivals are treated alike
        (dict(a=0.001, b=0.04, c=0.6), 'aabbc'),
        (dict(a=0.06, b=0.07, c=0.6), 'abc'),
    ],
)
def test_calls_that_follow_an_untimed_one(monkeypatch, seconds, expected):
    order, now = [], [0.0]

    def call(name):
        order.append(name)
        now[0] += seconds[name]

    monkeypatch.setattr(measure.time, 'perf_counter', lambda: now[0])
    calls = {name: partial(call, name) for name in seconds}
    times = interleave(calls, CPU, min_rounds=2, min_seconds=0.0)
    assert ''.join(order) == 'abc' + 2 * expected
    assert {name: pytest.approx([s, s]) for name, s in seconds.items()} == times


def test_rounds_are_limited_and_grow_with_the_time_asked_for():
    assert len(interleave({'a': lambda: None}, CPU, 1, 100.0, max_rounds=7)['a']) == 7


def test_slope_of_power_laws():
    tokens = [4096, 16384, 65536]
    for exponent in (0.0, 1.0, 2.0):
        values = [3e-7 * n**exponent for n in tokens]
        assert slope(tokens, values) == pytest.approx(exponent, abs=1e-9)


def test_spread_ignores_an_outlier():
    assert Spread.of([3.0, 1.0, 2.0, 1000.0, 2.5]) == Spread(2.5, 2.0, 3.0)


def test_difference():
    x = torch.randn(5)
    assert difference(x, x) == 0
    assert difference(1.5 * x, x) == pytest.approx(0.5)
    assert difference(x, torch.zeros(5)) == pytest.approx(float(x.double().norm()))
    assert difference(x[:4], x) == float('inf')
    assert difference(x * float('nan'), x) != difference(x * float('nan'), x)

import asyncio
import dataclasses
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch

from mmlinattn.models.layers.activation_checkpointing import recomputed
from mmlinattn.ops import BackendError, use_backend
from mmlinattn.ops.common import dispatch
from mmlinattn.ops.common.dispatch import Operator


@pytest.fixture
def operator(monkeypatch):
    """An operator that reports which form ran; its fused form refuses 3 tokens."""
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', None)
    kernels = SimpleNamespace(
        fused=lambda q: 'fused',
        refuses=lambda q: '3 tokens are too few' if q.shape[0] == 3 else None,
    )
    return Operator('op', lambda q: 'reference', lambda q: 'portable', lambda: kernels)


def test_auto_is_portable_on_the_cpu(operator):
    assert operator('auto', torch.zeros(4)) == 'portable'


def test_context_overrides_auto_but_not_an_explicit_backend(operator):
    with use_backend('reference'):
        assert operator('auto', torch.zeros(4)) == 'reference'
        assert operator('portable', torch.zeros(4)) == 'portable'
        with use_backend('portable'):
            assert operator('auto', torch.zeros(4)) == 'portable'
        assert operator('auto', torch.zeros(4)) == 'reference'
    assert operator('auto', torch.zeros(4)) == 'portable'


def test_context_is_left_on_an_exception(operator):
    with pytest.raises(KeyError), use_backend('reference'):
        raise KeyError
    assert operator('auto', torch.zeros(4)) == 'portable'


def test_threads_do_not_see_each_others_choice(operator):
    backends = ['reference', 'portable', None, 'reference'] * 2
    together = Barrier(len(backends))

    def call(backend):
        with use_backend(backend) if backend else nullcontext():
            together.wait(10)  # all have chosen
            found = operator('auto', torch.zeros(4))
            together.wait(10)  # all have called
        return found, operator('auto', torch.zeros(4))

    with use_backend('reference'), ThreadPoolExecutor(len(backends)) as threads:
        found = [*threads.map(call, backends)]
    assert found == [(backend or 'portable', 'portable') for backend in backends]


def test_tasks_do_not_see_each_others_choice(operator):
    async def call(backend):
        with use_backend(backend):
            await asyncio.sleep(0.01)
            return operator('auto', torch.zeros(4))

    async def all_of_them():
        return await asyncio.gather(*map(call, ('reference', 'portable', 'reference')))

    assert asyncio.run(all_of_them()) == ['reference', 'portable', 'reference']


def test_compiled_code_follows_the_choice_of_its_thread():
    # Forms that can be told apart by their results.
    operator = Operator('op', lambda q: q - 1, lambda q: q + 1)
    compiled = torch.compile(lambda q: operator('auto', q), fullgraph=True, backend='eager')

    def call(backend):
        with use_backend(backend):
            return compiled(torch.zeros(1)).item()

    assert compiled(torch.zeros(1)).item() == 1
    with use_backend('reference'):
        assert compiled(torch.zeros(1)).item() == -1
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(compiled, torch.zeros(1)).result().item() == 1
            assert threads.submit(call, 'reference').result() == -1
    assert compiled(torch.zeros(1)).item() == 1


def test_a_choice_inside_compiled_code(needs_to_compile):
    needs_to_compile('a block that chooses')
    operator = Operator('op', lambda q: q - 1, lambda q: q + 1)

    def call(q):
        with use_backend('reference'):
            inside = operator('auto', q)
        return inside, operator('auto', q)

    inside, outside = torch.compile(call, fullgraph=True, backend='eager')(torch.zeros(1))
    assert (inside.item(), outside.item()) == (-1, 1)
    assert operator('auto', torch.zeros(1)).item() == 1


def test_what_is_computed_again_goes_the_way_that_it_went():
    ran = []

    def form(name):
        return lambda q: ran.append(name) or q * 2

    operator = Operator('op', form('reference'), form('portable'))

    class Block(torch.nn.Module):
        def forward(self, q):
            return operator('auto', q).exp()

    with use_backend('reference'):
        out = recomputed(Block(), torch.zeros(1, requires_grad=True))
    with ThreadPoolExecutor(1) as threads:
        threads.submit(out.backward).result()
    assert ran == ['reference', 'reference']


def test_interpreter_serves_where_fused_is_asked_for(operator, monkeypatch):
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    assert operator('fused', torch.zeros(4)) == 'fused'
    assert operator('auto', torch.zeros(4)) == 'portable'
    with use_backend('fused'):
        assert operator('auto', torch.zeros(4)) == 'fused'
    with pytest.raises(BackendError, match='3 tokens are too few'):
        operator('fused', torch.zeros(3))


def test_forced_fused_on_the_cpu_says_why(operator, monkeypatch):
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    with pytest.raises(BackendError, match='need a CUDA tensor, got one on cpu'):
        operator('fused', torch.zeros(4))


def test_forced_fused_without_a_kernel_says_so(operator):
    operator = dataclasses.replace(operator, kernels=None)
    with pytest.raises(BackendError, match='op: .*no fused kernel'):
        operator('fused', torch.zeros(4))


@pytest.mark.parametrize(
    'version, message',
    [
        (None, 'Triton is not installed'),
        ('3.0.0', 'tested with Triton 3.2 to 3.9, this is 3.0.0'),
        ('3.10.0', 'this is 3.10.0'),
        ('of an unknown version', 'this is of an unknown version'),
        ('3.2.0', None),
        ('3.9.0+git1234', None),
    ],
)
def test_kernels_run_on_tested_versions_of_triton(operator, monkeypatch, version, message):
    problem = dispatch.triton_problem(version)
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', problem)
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    if message is None:
        assert problem is None and operator('fused', torch.zeros(4)) == 'fused'
        return
    assert message in problem
    with pytest.raises(BackendError, match=f"op: backend='fused' cannot .*{message}"):
        operator('fused', torch.zeros(4))


def test_auto_on_an_untested_triton_is_portable_and_says_so_once(operator, monkeypatch):
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', dispatch.triton_problem('3.0.0'))
    dispatch._say_once.cache_clear()
    on_a_gpu = SimpleNamespace(is_cuda=True)
    with pytest.warns(UserWarning, match='no fused kernels on this GPU: .*this is 3.0.0') as said:
        assert operator('auto', on_a_gpu) == operator('auto', on_a_gpu) == 'portable'
        assert operator('auto', torch.zeros(4)) == 'portable'
    assert len(said) == 1


def test_unknown_backend():
    with pytest.raises(ValueError, match="'triton'"), use_backend('triton'):
        pass


@pytest.mark.parametrize('value, expected', [('reference', 'reference'), ('', 'auto')])
def test_environment_variable(monkeypatch, value, expected):
    monkeypatch.setenv('MMLINATTN_BACKEND', value)
    q = torch.zeros(4)
    op = fresh_dispatch().Operator('op', lambda q: 'reference', lambda q: 'auto')
    assert op('auto', q) == expected


def test_environment_variable_must_name_a_backend(monkeypatch):
    monkeypatch.setenv('MMLINATTN_BACKEND', 'fast')
    with pytest.raises(ValueError, match="MMLINATTN_BACKEND must be one of .*'fast'"):
        fresh_dispatch()


def fresh_dispatch():
    """The module as a new process would import it."""
    spec = importlib.util.spec_from_file_location('mmlinattn.ops.common.fresh', dispatch.__file__)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_named_algorithms_run_whatever_the_default(operator):
    operator = dataclasses.replace(operator, algorithms=dict(tile=lambda q: 'tile'))
    with use_backend('reference'):
        assert operator('tile', torch.zeros(4)) == 'tile'
    with pytest.raises(ValueError, match=r"backend must be one of .*'tile'\), got 'sat'"):
        operator('sat', torch.zeros(4))
    with pytest.raises(ValueError, match="'tile'"), use_backend('tile'):
        pass  # not every operator has it

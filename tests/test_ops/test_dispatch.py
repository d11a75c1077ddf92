import importlib.util
from types import SimpleNamespace

import pytest
import torch

from mmlinattn.models.layers.activation_checkpointing import checkpoint_block
from mmlinattn.ops import BackendError, use_backend
from mmlinattn.ops.common import dispatch


class Tensor(SimpleNamespace):
    """A tensor on a GPU that is not there."""


class Operator:
    """An operator that returns, or computes by, the implementation that was chosen."""

    def __init__(self, forms=None, unsupported=lambda q: None, algorithms=(), module=dispatch):
        self.forms = forms or {}
        self.unsupported, self.algorithms, self.module = unsupported, algorithms, module

    def __call__(self, backend, q):
        chosen = self.module.choose_backend(
            'op', backend, q, self.unsupported, q, algorithms=self.algorithms
        )
        return self.forms[chosen](q) if self.forms else chosen


@pytest.fixture
def operator(monkeypatch):
    """An operator whose kernels do not support 3 tokens."""
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', None)
    return Operator(unsupported=lambda q: '3 tokens are too few' if q.shape[0] == 3 else None)


def test_auto_is_torch_on_the_cpu(operator):
    assert operator('auto', torch.zeros(4)) == 'torch'


def test_context_overrides_auto_but_not_an_explicit_backend(operator):
    with use_backend('reference'):
        assert operator('auto', torch.zeros(4)) == 'reference'
        assert operator('torch', torch.zeros(4)) == 'torch'
        with use_backend('torch'):
            assert operator('auto', torch.zeros(4)) == 'torch'
        assert operator('auto', torch.zeros(4)) == 'reference'
    assert operator('auto', torch.zeros(4)) == 'torch'


def test_context_is_left_on_an_exception(operator):
    with pytest.raises(KeyError), use_backend('reference'):
        raise KeyError
    assert operator('auto', torch.zeros(4)) == 'torch'


def test_compiled_code_follows_the_choice():
    # Forms that can be told apart by their results.
    operator = Operator(dict(reference=lambda q: q - 1, torch=lambda q: q + 1))
    compiled = torch.compile(lambda q: operator('auto', q), fullgraph=True, backend='eager')
    assert compiled(torch.zeros(1)).item() == 1
    with use_backend('reference'):
        assert compiled(torch.zeros(1)).item() == -1
    assert compiled(torch.zeros(1)).item() == 1


def test_a_choice_inside_compiled_code(needs_to_compile):
    needs_to_compile('a block that chooses')
    operator = Operator(dict(reference=lambda q: q - 1, torch=lambda q: q + 1))

    def call(q):
        with use_backend('reference'):
            inside = operator('auto', q)
        return inside, operator('auto', q)

    inside, outside = torch.compile(call, fullgraph=True, backend='eager')(torch.zeros(1))
    assert (inside.item(), outside.item()) == (-1, 1)
    assert operator('auto', torch.zeros(1)).item() == 1


def test_recomputation_uses_the_backend_of_the_forward_pass():
    ran = []

    def form(name):
        return lambda q: ran.append(name) or q * 2

    operator = Operator({name: form(name) for name in ('reference', 'torch')})

    class Block(torch.nn.Module):
        def forward(self, q):
            return operator('auto', q).exp()

    with use_backend('reference'):
        out = checkpoint_block(Block(), torch.zeros(1, requires_grad=True))
    out.backward()
    assert ran == ['reference', 'reference']


def test_interpreter_serves_a_forced_triton(operator, monkeypatch):
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    assert operator('triton', torch.zeros(4)) == 'triton'
    assert operator('auto', torch.zeros(4)) == 'torch'
    with use_backend('triton'):
        assert operator('auto', torch.zeros(4)) == 'triton'
    with pytest.raises(BackendError, match='3 tokens are too few'):
        operator('triton', torch.zeros(3))


def test_forced_triton_on_the_cpu_names_the_reason(operator, monkeypatch):
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    message = r"need a CUDA tensor, got one on cpu\. Use backend='torch', or 'auto' without use_b"
    with pytest.raises(BackendError, match=message):
        operator('triton', torch.zeros(4))


def test_forced_triton_without_a_kernel_is_an_error(operator):
    operator.unsupported = None
    with pytest.raises(BackendError, match='op: .*no Triton kernel'):
        operator('triton', torch.zeros(4))


@pytest.mark.parametrize(
    'version, message',
    [
        (None, 'Triton is not installed'),
        ('3.0.0', 'tested with Triton 3.3 to 3.9, this is 3.0.0'),
        ('3.10.0', 'this is 3.10.0'),
        ('of an unknown version', 'this is of an unknown version'),
        ('3.3.0', None),
        ('3.9.0+git1234', None),
    ],
)
def test_kernels_run_on_tested_versions_of_triton(operator, monkeypatch, version, message):
    problem = dispatch.triton_problem(version)
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', problem)
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    if message is None:
        assert problem is None and operator('triton', torch.zeros(4)) == 'triton'
        return
    assert message in problem
    with pytest.raises(BackendError, match=f"op: backend='triton' cannot .*{message}"):
        operator('triton', torch.zeros(4))


@pytest.mark.parametrize(
    'major, triton, hip, expected',
    [(8, '3.6.0', None, 'triton'), (7, '3.6.0', None, 'torch'), (9, '3.0.0', None, 'torch'),
     (9, None, None, 'torch'), (9, '3.6.0', '6.4', 'torch')],
)  # fmt: skip
def test_auto_depends_on_gpu_and_triton_alone(
    operator, monkeypatch, capsys, major, triton, hip, expected
):
    """Nothing is printed and no warning is given, whatever the reason."""
    monkeypatch.setattr(dispatch, 'TRITON_PROBLEM', dispatch.triton_problem(triton))
    monkeypatch.setattr(torch.version, 'hip', hip)
    facts = SimpleNamespace(name='A GPU', major=major, minor=0)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda index: facts)
    monkeypatch.setattr(dispatch, 'gpu_problem', dispatch._gpu_problem.__wrapped__)
    on_a_gpu = Tensor(is_cuda=True, get_device=lambda: 0, numel=lambda: 4, shape=torch.Size([4]))
    assert operator('auto', on_a_gpu) == expected
    assert operator('auto', torch.zeros(4)) == 'torch'
    if expected == 'torch':
        with pytest.raises(BackendError, match='NVIDIA|compute capability|Triton'):
            operator('triton', on_a_gpu)
    on_a_gpu.shape = torch.Size([3])  # too few
    assert operator('auto', on_a_gpu) == 'torch'
    assert capsys.readouterr() == ('', '')


def test_unknown_backend():
    with pytest.raises(ValueError, match="'fused'"), use_backend('fused'):
        pass


@pytest.mark.parametrize('value, expected', [('reference', 'reference'), ('', 'torch')])
def test_environment_variable(monkeypatch, value, expected):
    monkeypatch.setenv('MMLINATTN_BACKEND', value)
    q = torch.zeros(4)
    op = Operator(module=fresh_dispatch())
    assert op('auto', q) == expected


def test_environment_variable_must_name_a_backend(monkeypatch):
    monkeypatch.setenv('MMLINATTN_BACKEND', 'fast')
    with pytest.raises(ValueError, match="MMLINATTN_BACKEND must be one of .*'fast'"):
        fresh_dispatch()


def fresh_dispatch():
    """The module as a new process would import it."""
    spec = importlib.util.spec_from_file_location('mmlinattn.ops.common.fresh', dispatch.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_named_algorithms_run_whatever_the_default(operator):
    operator.algorithms = ('tile',)
    with use_backend('reference'):
        assert operator('tile', torch.zeros(4)) == 'tile'
    with pytest.raises(ValueError, match=r"backend must be one of .*'tile'\), got 'sat'"):
        operator('sat', torch.zeros(4))
    with pytest.raises(ValueError, match="'tile'"), use_backend('tile'):
        pass  # not every operator has it

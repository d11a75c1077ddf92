"""Linear layers by oneDNN against their definition in float64, and models that have them."""

import copy
import pickle

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmlinattn import optimize_for_cpu
from mmlinattn.engine import load_model
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.models.backbones import RAVLT
from mmlinattn.models.layers import CPULinear, SoftmaxAttention, cpu_linear
from mmlinattn.models.layers.cpu_linear import CONV_HEADS
from mmlinattn.models.layers.linear_projection import gelu_inplace_if_safe

from .conftest import assert_near_exact


@pytest.fixture
def by_onednn(monkeypatch):
    """oneDNN for products of all sizes; returns the shapes that came to it."""
    if not hasattr(torch.ops.mkldnn, '_linear_pointwise'):
        pytest.skip('this torch was built without oneDNN')
    calls = []
    product = cpu_linear._product

    def spy(x, weight, bias):
        calls.append((tuple(x.shape), tuple(weight.shape)))
        return product(x, weight, bias)

    monkeypatch.setattr(cpu_linear, 'onednn_is_faster', lambda: True)
    monkeypatch.setattr(cpu_linear, 'LEAST', 1)
    monkeypatch.setattr(cpu_linear, '_product', spy)
    return calls


CASES = {
    'tokens': lambda: (torch.randn(2, 77, 24), torch.randn(40, 24)),
    'matrix': lambda: (torch.randn(5, 3), torch.randn(7, 3)),
    'one number': lambda: (torch.randn(1, 1, 1), torch.randn(1, 1)),
    'strided': lambda: (torch.randn(2, 9, 50, 48)[:, ::2, 3:, ::2], torch.randn(48, 30)[::2].t()),
    'expanded': lambda: (torch.randn(1, 20, 16).expand(3, -1, -1), torch.randn(8, 1).expand(8, 16)),
    'part of a projection': lambda: (torch.randn(2, 30, 16), torch.randn(48, 16)[16:32]),
}


@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('case', CASES)
def test_outputs_and_gradients(by_onednn, case, with_bias):
    x, weight = (t.requires_grad_() for t in CASES[case]())
    leaves = [x, weight, torch.randn(weight.shape[0], requires_grad=True)][: 2 + with_bias]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    out = cpu_linear.onednn_linear(*leaves)
    expected = exact[0] @ exact[1].T + (exact[2] if with_bias else 0)
    assert_near_exact(out, leaves, expected, exact, 1e-6)
    assert len(by_onednn) == 3


@pytest.mark.parametrize('shape', [(64, 512), (2, 32, 512), (2, 4, 8, 512)])
def test_an_output_may_be_modified_in_place(by_onednn, shape):
    """As by the ReLU of Mask2Former's head."""
    layer, x = nn.Linear(512, 512), torch.randn(shape, requires_grad=True)
    out = cpu_linear.onednn_linear(x, layer.weight, layer.bias).relu_()
    expected = F.linear(x, layer.weight, layer.bias).relu()
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    ours, theirs = (
        torch.autograd.grad((y * weights).sum(), (x, layer.weight, layer.bias))
        for y in (out, expected)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('outputs', [8, 40])
def test_no_second_factor_is_a_part_of_wider_rows(by_onednn, monkeypatch, outputs):
    """oneDNN takes such a one number by number."""
    seen, product = [], cpu_linear._product
    monkeypatch.setattr(cpu_linear, '_product', lambda x, w, b: seen.append(w) or product(x, w, b))
    x = torch.randn(50, 3 * 24)[:, :24].requires_grad_()
    weight = torch.randn(outputs, 24, requires_grad=True)
    grad = torch.randn(50, 3 * outputs)[:, :outputs]
    torch.autograd.grad(cpu_linear.onednn_linear(x, weight), (x, weight), grad)
    assert len(seen) == 3 and all(w.is_contiguous() or w.t().is_contiguous() for w in seen)


def test_second_derivatives(by_onednn):
    leaves = [torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)]

    def penalty(function, x, weight):
        (grad,) = torch.autograd.grad((function(x, weight) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad((grad**2).sum(), (x, weight))

    got = penalty(cpu_linear.onednn_linear, *leaves)
    expected = penalty(F.linear, *(t.detach().double().requires_grad_() for t in leaves))
    assert by_onednn
    for a, b in zip(got, expected):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_only_what_needs_a_gradient_gets_one(by_onednn):
    x, weight = torch.randn(6, 4), torch.randn(5, 4, requires_grad=True)
    cpu_linear.onednn_linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None
    assert len(by_onednn) == 2
    with torch.no_grad():
        assert not cpu_linear.onednn_linear(x, weight).requires_grad


def test_what_torch_does_itself(by_onednn):
    """Other types, autocast, transforms and a compiler."""
    layer, x = CPULinear(8, 6), torch.randn(3, 5, 8)
    with torch.autocast('cpu', torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    plain = F.linear(x, layer.weight, layer.bias)
    jacobian = torch.func.vmap(torch.func.jacrev(layer))(x)
    assert torch.equal(jacobian[0, 0, :, 0, :], layer.weight)
    compiled = torch.compile(layer, fullgraph=True, backend='eager')(x)
    doubled = CPULinear(8, 6).double()(x.double())
    empty, vector = layer(x[:, :0]), layer(x[0, 0])
    assert by_onednn == []
    assert doubled.dtype == torch.float64 and empty.shape == (3, 0, 6)
    assert torch.equal(compiled, plain)
    torch.testing.assert_close(vector, plain[0, 0])
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied'):
        layer(x[..., :-1])


def test_derivatives_taken_forwards(by_onednn):
    weight, x, way = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5, 8)
    with forward_ad.dual_level():
        out = cpu_linear.onednn_linear(forward_ad.make_dual(x, way), weight)
        tangent = forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(tangent, way @ weight.T)


def test_weights_with_a_product_of_their_own(by_onednn):
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
            out = function(*plain, **(kwargs or {}))
            return 2 * out if function is F.linear else out

    x, weight = torch.randn(5, 8), torch.randn(6, 8)
    out = cpu_linear.onednn_linear(x, weight.as_subclass(Doubled))
    torch.testing.assert_close(out, 2 * x @ weight.T)
    assert by_onednn == []


def test_processors(monkeypatch, tmp_path):
    info = tmp_path / 'cpuinfo'
    monkeypatch.setattr(cpu_linear, 'CPU_INFO', info)
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX512')
    monkeypatch.setattr(torch.backends.mkl, 'is_available', lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, 'is_available', lambda: True)
    assert not cpu_linear.onednn_is_faster()  # not Linux
    info.write_text('vendor_id : GenuineIntel\n')
    assert not cpu_linear.onednn_is_faster()
    info.write_text('vendor_id : AuthenticAMD\n')
    assert cpu_linear.onednn_is_faster() == hasattr(torch.ops.mkldnn, '_linear_pointwise')
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX2')
    assert not cpu_linear.onednn_is_faster()


@pytest.fixture
def models(by_onednn):
    """A network in training mode and its optimised copy."""
    arch = dict(embed_dims=(16, 32, 32, 32), depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2))
    plain = RAVLT(arch, drop_path_rate=0.0, norm_cfg=dict(type='BN'))
    return plain, optimize_for_cpu(copy.deepcopy(plain))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_network_gives_the_same(models, by_onednn):
    x = torch.randn(2, 3, 64, 64)
    outs = [model(x) for model in models]
    assert by_onednn
    close(*reversed(outs))
    grads = [
        torch.autograd.grad(sum(out.square().mean() for out in each), list(model.parameters()))
        for each, model in zip(outs, models)
    ]
    for got, expected in zip(grads[1], grads[0]):
        assert (got - expected).norm() <= 1e-3 * expected.norm() + 1e-6
    names = [[(name, p.shape) for name, p in m.state_dict().items()] for m in models]
    assert names[0] == names[1]
    kinds = [{type(m) for m in model.modules()} for model in models]
    assert CPULinear in kinds[1] - kinds[0] and nn.Linear in kinds[0] - kinds[1]


@pytest.mark.parametrize(
    'change',
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model.train().eval(),
        lambda model: model.double().float().to('cpu'),
        lambda model: optimize_for_cpu(optimize_for_cpu(model)),
        lambda model: optimize_for_cpu(model, enabled=False),
        lambda model: torch.compile(model, backend='eager'),
        lambda model: torch.jit.trace(model, torch.randn(1, 3, 64, 64)),
        lambda model: torch.export.export(
            model, (torch.randn(1, 3, 64, 64),), strict=False
        ).module(),
    ],
    ids=['deepcopy', 'pickle', 'eval', 'to', 'twice', 'undo', 'compile', 'trace', 'export'],
)
def test_what_users_do_to_it(models, change):
    plain, optimised = (model.eval() for model in models)
    plain.load_state_dict({k: torch.rand_like(v.float()) for k, v in plain.state_dict().items()})
    optimised.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = plain(x)
        out = change(optimised)(x)
    for got, wanted in zip(out, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())


def test_undone_and_untouched_layers(by_onednn, monkeypatch):
    class Own(nn.Linear):
        pass

    model = nn.ModuleList([nn.Linear(4, 4), Own(4, 4)])
    assert optimize_for_cpu(model) is model and [type(m) for m in model] == [CPULinear, Own]
    optimize_for_cpu(model, enabled=False)
    assert type(model[0]) is nn.Linear
    monkeypatch.setattr(cpu_linear, 'onednn_is_faster', lambda: False)
    assert type(optimize_for_cpu(model)[0]) is nn.Linear
    with pytest.raises(TypeError, match='must be an nn.Module, got dict'):
        optimize_for_cpu({})


def test_queries_and_values_of_different_tokens(by_onednn):
    """They take a part of the weight."""
    attn = SoftmaxAttention(16, 2)
    x, position = torch.randn(2, 2, 12, 16)
    expected = attn(x, (3, 4), position)
    assert by_onednn == []
    close(optimize_for_cpu(attn)(x, (3, 4), position), expected)
    assert sorted(weight for _, weight in by_onednn) == [(16, 16), (16, 16), (32, 16)]


def test_hooks_see_the_layer(by_onednn):
    seen = []
    attn = optimize_for_cpu(SoftmaxAttention(16, 2))
    attn.proj.register_forward_hook(lambda layer, args, out: seen.append(out))
    out = attn(torch.randn(1, 12, 16), (3, 4))
    assert torch.equal(seen[0], out)


@pytest.mark.parametrize(
    'name, changes', [*((name, True) for name in CONV_HEADS), ('OtherHead', False)]
)
def test_maps_of_segmentation_heads(name, changes):
    head = type(name, (nn.Sequential,), {})(nn.Conv2d(4, 4, 3))
    model = nn.ModuleDict(dict(neck=nn.Sequential(nn.Conv2d(4, 4, 3)), decode_head=head))
    optimize_for_cpu(model)
    weights = [p for p in model.parameters() if p.dim() == 4]
    assert [p.is_contiguous(memory_format=torch.channels_last) for p in weights] == [changes] * 2
    optimize_for_cpu(model, enabled=False)
    assert all(p.is_contiguous() for p in weights)


def test_counters_see_products_and_other_devices_compute(by_onednn):
    layer, x = CPULinear(8, 6), torch.randn(3, 8)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 3 * 8 * 6
    assert layer.to('meta')(x.to('meta')).shape == (3, 6)
    assert by_onednn == []


def test_gelu_overwrites_the_output(by_onednn):
    layer = CPULinear(8, 6)
    with torch.no_grad():
        hidden = layer(torch.randn(3, 8))
        assert gelu_inplace_if_safe(layer, hidden).data_ptr() == hidden.data_ptr()


def test_the_commands_call_it(by_onednn, monkeypatch):
    """Trainings, tests and predictions on a CPU, and none on a GPU."""
    cfg = Config(dict(model=dict(type='RAVLT', arch='tiny')))
    monkeypatch.setattr('mmlinattn.engine.model.load_checkpoint', lambda *args: {})
    model, _ = load_model(cfg, 'weights.pth')
    assert any(type(m) is CPULinear for m in model.modules())
    for device, kind in (('cpu', CPULinear), ('cuda', nn.Linear)):
        monkeypatch.setattr(
            'mmlinattn.engine.runner.runner.get_device', lambda device=device: device
        )
        runner = PluginRunner.__new__(PluginRunner)
        monkeypatch.setattr(Runner, 'wrap_model', lambda self, cfg, model: model)
        assert type(runner.wrap_model(None, nn.Sequential(nn.Linear(4, 4)))[0]) is kind


def test_torch_switches_onednn_off(by_onednn):
    with torch.backends.mkldnn.flags(enabled=False):
        CPULinear(8, 6)(torch.randn(3, 8))
    assert by_onednn == []


def test_models_on_other_devices_are_left(monkeypatch):
    monkeypatch.setattr(cpu_linear, 'onednn_is_faster', lambda: True)
    with torch.device('meta'):
        model = nn.Sequential(nn.Linear(2, 3))
    assert type(optimize_for_cpu(model)[0]) is nn.Linear

"""Hooks, pruning, replacement and quantisation of the linear layers and convolutions."""

import copy

import pytest
import torch
from mmengine.analysis import FlopAnalyzer
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from mmlinattn.analysis import analyse
from mmlinattn.models.layers import (
    ConvFFN,
    MixFFN,
    SoftmaxAttention,
    SpatialReductionAttention,
    TokenLayout,
    WindowAttention,
)
from mmlinattn.models.layers.ffn import MLP
from mmlinattn.models.layers.linear_projection import is_unmodified

HW = (3, 4)


@pytest.fixture(params=[ConvFFN, MixFFN])
def ffn(request):
    return request.param(8, 16)


def test_hooks_receive_the_output_of_the_layer(ffn):
    """Test that GELU does not overwrite the output in place."""
    seen = {}
    for name in ('fc1', 'dwconv', 'fc2'):
        getattr(ffn, name).register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: (args[0], out)})
        )
    with torch.no_grad():
        ffn(torch.randn(2, 12, 8), HW)
    assert set(seen) == {'fc1', 'dwconv', 'fc2'}
    x, out = seen['fc1']
    torch.testing.assert_close(out, F.linear(x, ffn.fc1.weight, ffn.fc1.bias))
    x, out = seen['dwconv']
    torch.testing.assert_close(out, ffn.dwconv._conv_forward(x, ffn.dwconv.weight, ffn.dwconv.bias))


def test_global_hooks_are_called(ffn):
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    try:
        ffn(torch.randn(2, 12, 8), HW)
    finally:
        handle.remove()
    assert seen.count(nn.Linear) == 2 and seen.count(nn.Conv2d) == 1


def test_pruned_layers_train(ffn):
    for name in ('fc1', 'dwconv', 'fc2'):
        prune.l1_unstructured(getattr(ffn, name), 'weight', amount=0.5)
    for _ in range(2):
        ffn(torch.randn(2, 12, 8), HW).sum().backward()
    assert ffn.dwconv.weight_orig.grad is not None


def test_replaced_layers_are_called(ffn):
    """Test an identity, whose output is its input, and a wrapper, which has no weight."""
    ffn.dwconv = nn.Sequential(ffn.dwconv)
    x = torch.randn(2, 12, 8)
    before = x.clone()
    ffn.fc1, ffn.dwconv, ffn.fc2 = nn.Identity(), nn.Sequential(nn.Identity()), nn.Identity()
    with torch.no_grad():
        out = ffn(x, HW)
    assert torch.equal(x, before) and out.shape == x.shape


def test_dynamic_quantisation_replaces_the_layers():
    model = nn.ModuleList([MLP(16, 32), SoftmaxAttention(16, 2)])
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    kinds = {type(module) for module in quantised.modules() if hasattr(module, 'in_features')}
    assert kinds == {torch.ao.nn.quantized.dynamic.Linear}
    x = torch.randn(2, 12, 16)
    torch.testing.assert_close(quantised[0](x), model[0](x), rtol=0.1, atol=0.1)


def test_is_unmodified_requires_the_exact_class():
    layer = nn.Linear(2, 2)
    assert is_unmodified(layer, nn.Linear) and not is_unmodified(layer, nn.Conv2d)
    layer.register_forward_pre_hook(lambda *_: None)
    assert not is_unmodified(layer, nn.Linear)
    assert not is_unmodified(type('Wrapped', (nn.Linear,), {})(2, 2), nn.Linear)


class Adapter(nn.Module):
    """Projection with a low-rank term beside the weights of the layer that it replaces."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.weight, self.bias = layer, layer.weight, layer.bias
        self.down, self.up = nn.Linear(8, 2), nn.Linear(2, layer.out_features)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


@pytest.mark.parametrize('kind', [SoftmaxAttention, SpatialReductionAttention])
def test_a_replaced_projection_is_called_with_query_positions(kind):
    attn = kind(8, 2).double()
    x, pos = torch.randn(2, 1, 12, 8, dtype=torch.float64).unbind()
    attn.in_proj = Adapter(attn.in_proj).double()
    (q, k, _), (_, _, v) = (attn.in_proj(t).chunk(3, -1) for t in (x + pos, x))
    layout = TokenLayout((3, 4))
    out = attn.attend(*(attn.split_heads(t) for t in (q, k, v)), layout)
    expected = attn.proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, (3, 4), pos), expected)


@pytest.mark.parametrize('change', ['hook', 'forward'])
@pytest.mark.parametrize('kind', [SoftmaxAttention, SpatialReductionAttention])
def test_a_hooked_projection_is_called_with_query_positions(kind, change):
    attn, merged = kind(8, 2), kind(8, 2)
    merged.load_state_dict({k: v / 2 if 'in_' in k else v for k, v in attn.state_dict().items()})
    layer = attn.in_proj
    if change == 'hook':
        layer.register_forward_hook(lambda layer, inputs, out: out / 2)
    else:
        layer.forward = lambda x: type(layer).forward(layer, x) / 2
    x, pos = torch.randn(2, 1, 12, 8).unbind()
    for run in (attn, torch.compile(attn, backend='eager', fullgraph=True)):
        torch.testing.assert_close(run(x, (3, 4), pos), merged(x, (3, 4), pos))


def test_counters_count_a_split_projection_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = SoftmaxAttention(3, 1)

        def forward(self, image):
            x = image.flatten(2).mT
            return self.attn(x, image.shape[2:], x)

    net, expected = Net(), 32 * 32 * 3 * (9 + 3)  # in_proj and proj
    cost = analyse(net, (32, 32))
    assert (cost.conv_linear, cost.by_module['attn.proj'].total) == (expected, 32 * 32 * 9)
    counted = FlopAnalyzer(net, torch.zeros(1, 3, 32, 32)).by_operator()
    assert counted['linear'] == expected


@pytest.mark.parametrize('kind', [SoftmaxAttention, SpatialReductionAttention])
def test_a_pruned_attention_computes_with_the_weights_that_it_loads(kind):
    attn, loaded = kind(8, 2), kind(8, 2)
    for layer in (attn, loaded):
        prune.l1_unstructured(layer.in_proj, 'weight', amount=0.5)
    loaded.load_state_dict(attn.state_dict())
    x, pos = torch.randn(2, 1, 12, 8).unbind()
    for _ in range(2):  # a weight that no call computes keeps the graph of the first step
        out = loaded(x, (3, 4), pos)
        torch.testing.assert_close(out, attn(x, (3, 4), pos))
        out.sum().backward()
    assert loaded.in_proj.weight_orig.grad.any()


def test_windows_are_padded_with_what_a_replaced_projection_makes_of_zero():
    attn = WindowAttention(8, 2, window_size=2)
    merged = copy.deepcopy(attn)
    attn.in_proj = adapter = Adapter(attn.in_proj)
    with torch.no_grad():
        merged.in_proj.weight += adapter.up.weight @ adapter.down.weight
        merged.in_proj.bias += adapter.up(adapter.down.bias)
    x = torch.randn(1, 15, 8)
    torch.testing.assert_close(attn(x, (3, 5)), merged(x, (3, 5)))


def test_parts_of_a_projection_cast_their_weights_once():
    attn = SpatialReductionAttention(8, 2, sr_ratio=2)
    casts = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._to_copy.default:
                casts.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    with Casts(), torch.autocast('cpu', torch.bfloat16):
        attn(torch.randn(1, 16, 8), (4, 4))
    assert casts.count((24, 8)) == 1 and (16, 8) not in casts

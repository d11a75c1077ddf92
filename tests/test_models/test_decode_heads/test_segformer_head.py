"""SegFormer's heads against MMSegmentation's formula: outputs, gradients, products, hooks."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmseg', reason='MMSegmentation comes with the extra "seg"')
from mmseg.models import decode_heads as mmseg_heads
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import peak_memory
from mmlinattn.models.decode_heads import AllMLPHead, LevelwiseSegformerHead
from tests.more_rules import LargestTensor

CHANNELS = (8, 12, 20, 28)
SIZES = ((24, 32), (12, 16), (6, 8), (3, 4))
ODD = ((23, 31), (12, 16), (6, 8), (3, 4))


class Products(TorchDispatchMode):
    """Counter of products that calls no hook: with one, the head computes the original formula."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name == 'aten::convolution':
            self.count += out.numel() * args[1].shape[1]
        elif name in ('aten::mm', 'aten::mv'):
            self.count += out.numel() * args[0].shape[1]
        return out


def built(cls, **options):
    torch.manual_seed(0)
    defaults = dict(norm_cfg=dict(type='BN'), channels=32, align_corners=False)
    options = dict(defaults, **options)
    head = cls(in_channels=[*CHANNELS], in_index=[0, 1, 2, 3], num_classes=5, dropout_ratio=0.0,
               **options)  # fmt: skip
    for name, buffer in head.named_buffers():
        if 'running' in name:
            buffer.uniform_(0.5, 2)
    return head.double()


def levels(sizes=SIZES, dtype=torch.float64):
    torch.manual_seed(1)
    return [
        torch.randn(2, c, *size, dtype=dtype).requires_grad_() for c, size in zip(CHANNELS, sizes)
    ]


def original(head, inputs):
    """Compute what MMSegmentation computes, from the concatenation."""
    return mmseg_heads.SegformerHead.forward(head, inputs)


@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('sizes', [SIZES, ODD])
@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(norm_cfg=None),
        dict(align_corners=True),
        dict(interpolate_mode='nearest'),
        dict(interpolate_mode='bicubic'),
    ],
)
@pytest.mark.parametrize('cls', [LevelwiseSegformerHead, AllMLPHead])
def test_outputs_and_gradients(cls, options, sizes, train):
    head = built(cls, **options).train(train)
    if options.get('interpolate_mode') == 'nearest':
        head.align_corners = None  # torch takes none for nearest neighbours
    results = []
    for formula in (head, lambda x: original(head, x)):
        inputs = levels(sizes)
        out = formula(inputs)
        torch.manual_seed(2)
        wanted = [*inputs, *(p for n, p in head.named_parameters())]
        found = torch.autograd.grad((out * torch.randn_like(out)).sum(), wanted, allow_unused=True)
        results.append([out, *found])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ('cls', 'products'),
    [
        # At each level: the own layer, then the fusion.
        (LevelwiseSegformerHead, lambda h, w, c: 2 * h * w * (c * 32 + 32 * 32)),
        (AllMLPHead, lambda h, w, c: 2 * h * w * c * 32 + 32 * 32 * c + 32 * 32),
    ],
)
def test_products_and_memory(cls, products):
    head = built(cls).eval()
    with Products() as counted, torch.no_grad():
        head(levels())
    expected = sum(products(h, w, c) for (h, w), c in zip(SIZES, CHANNELS)) + 2 * 24 * 32 * 32 * 5
    assert counted.count == expected
    with LargestTensor() as largest, torch.no_grad():
        head(levels())
    largest_map = 2 * 32 * 24 * 32
    assert largest.numel == largest_map  # the concatenation has four times as many
    # In this layout no operator copies: at most the sum, one more map and a small one live at once.
    layout = torch.channels_last
    inputs = [x.detach().to(memory_format=layout) for x in levels(dtype=torch.float32)]
    head.to(torch.float32, memory_format=layout).requires_grad_(False)
    peak = peak_memory(lambda: head(inputs), torch.device('cpu'))
    assert 2 <= peak / (4 * largest_map) < 2.5


@pytest.mark.parametrize('cls', [LevelwiseSegformerHead, AllMLPHead])
def test_hooks_see_the_layers(cls):
    head, seen = built(cls).eval(), []
    expected = head(levels())
    head.fusion_conv.conv.register_forward_hook(lambda *_: seen.append('fusion'))
    torch.testing.assert_close(head(levels()), expected)
    assert seen == ['fusion']


@pytest.mark.parametrize(
    'change',
    [
        lambda h: setattr(h.fusion_conv.conv, 'forward', lambda x: 2 * x[:, :32]),
        lambda h: setattr(h.fusion_conv, 'conv', nn.Conv2d(128, 32, 3, padding=1).double()),
        lambda h: setattr(h.fusion_conv, 'conv', nn.Conv2d(128, 32, 1, groups=4).double()),
    ],
    ids=['forward-of-instance', '3x3', 'groups'],
)
@pytest.mark.parametrize('cls', [LevelwiseSegformerHead, AllMLPHead])
def test_replaced_layers_are_called(cls, change):
    head = built(cls).eval()
    change(head)
    torch.testing.assert_close(head(levels()), original(head, levels()), rtol=0, atol=0)


def test_a_projection_without_bias():
    head = built(AllMLPHead).eval()
    head.convs[1] = nn.Conv2d(CHANNELS[1], 32, 1, bias=False).double()
    torch.testing.assert_close(head(levels()), original(head, levels()))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('cls', [LevelwiseSegformerHead, AllMLPHead])
def test_autocast(cls, dtype):
    head, inputs = built(cls).float().eval(), levels(dtype=torch.float32)
    expected = original(head, inputs)
    with torch.autocast('cpu', dtype=dtype):
        ours, theirs = head(inputs), original(head, inputs)
    assert ours.dtype == theirs.dtype == dtype
    error, other = ((out.float() - expected).norm() for out in (ours, theirs))
    assert error < 1.25 * other


@pytest.mark.parametrize('cls', [LevelwiseSegformerHead, AllMLPHead])
def test_compiles_and_exports_with_any_size(cls):
    head = built(cls).float().eval()
    inputs = [x.detach() for x in levels(dtype=torch.float32)]
    expected = head(inputs)
    compiled = torch.compile(head, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(inputs), expected)
    names = [torch.export.Dim(f'{side}', max=999) for side in ('h', 'w')]
    coarse = [{2: scale * names[0], 3: scale * names[1]} for scale in (8, 4, 2)]
    shapes = ([*coarse, {2: names[0], 3: names[1]}],)
    program = torch.export.export(head, (inputs,), dynamic_shapes=shapes)
    assert not [n for n in program.graph.nodes if 'split' in str(n.target)]
    wider = [torch.randn(2, c, h + h // 3, w) for c, (h, w) in zip(CHANNELS, SIZES)]
    torch.testing.assert_close(program.module()(wider), head(wider))

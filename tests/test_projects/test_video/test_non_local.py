import pytest
import torch
from mmcv.cnn.bricks import non_local as mmcv_blocks
from torch.nn.utils import prune

from mmlinattn.projects.video import NonLocalBlock

MODES = ('gaussian', 'embedded_gaussian', 'dot_product', 'concatenation')
SHAPES = {1: (7,), 2: (5, 6), 3: (2, 4, 5)}
every_mode = pytest.mark.parametrize('mode', MODES)


class Rectified(torch.nn.Module):
    """ReLU that torch can differentiate; mmcv divides the result of its ReLU in place."""

    def forward(self, x):
        return x.relu() * 1


def random(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.double()


@every_mode
@pytest.mark.parametrize('dims', [1, 2, 3])
@pytest.mark.parametrize('options', [{}, dict(sub_sample=True), dict(use_scale=False, reduction=1)])
def test_equals_mmcv_with_the_same_weights(mode, dims, options):
    block = random(NonLocalBlock(6, dims, mode, **options))
    theirs = getattr(mmcv_blocks, f'NonLocal{dims}d')(6, mode=mode, **options).double()
    theirs.load_state_dict(block.state_dict())
    if mode == 'concatenation':
        theirs.concat_project.activate = Rectified()
    x = torch.randn(2, 6, *SHAPES[dims], dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn_like(x)
    results = []
    for module in (block, theirs):
        out = module(x)
        results.append([out, *torch.autograd.grad(out, [x, *module.parameters()], cotangent)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@every_mode
def test_a_pruned_block_computes_with_the_weights_that_it_has(mode):
    block, x = random(NonLocalBlock(4, mode=mode)).float(), torch.randn(1, 4, 3, 3).double()
    convs = [module for module in block.modules() if isinstance(module, torch.nn.Conv2d)]
    for conv in convs:
        prune.l1_unstructured(conv, 'weight', 0.25)
        conv.weight_orig.data.mul_(-3)
    out = block.double()(x)  # which does not convert the weights that a hook computes
    for conv in convs:
        prune.remove(conv, 'weight')
    torch.testing.assert_close(out, block(x))


@pytest.mark.parametrize('mode', ['dot_product', 'concatenation'])
def test_a_large_map_is_not_n_by_n(mode):
    block = random(NonLocalBlock(4, mode=mode)).float()
    assert torch.isfinite(
        block(torch.randn(1, 4, 300, 300))
    ).all()  # an N x N matrix would take 32 GB


@every_mode
def test_half_precision_is_close(mode):
    block = NonLocalBlock(8, mode=mode)
    torch.nn.init.normal_(block.conv_out.conv.weight)
    x = torch.randn(2, 8, 12, 12)
    exact = block(x)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = block(x)
    assert (half - exact).norm() < 0.01 * exact.norm()


def test_is_initialised_as_the_identity_also_inside_a_backbone():
    from mmengine.model import BaseModule

    class Parent(BaseModule):
        def __init__(self):
            super().__init__(dict(type='Kaiming', layer='Conv2d'))
            self.block = NonLocalBlock(8)
            self.with_norm = NonLocalBlock(8, norm_cfg=dict(type='BN'))

    parent, x = Parent(), torch.randn(2, 8, 4, 4)
    assert torch.equal(parent.block(x), x)
    parent.init_weights()
    assert torch.equal(parent.block(x), x) and torch.equal(parent.with_norm(x), x)
    assert 0.005 < parent.block.theta.conv.weight.std() < 0.02


@every_mode
def test_plugin_of_resnet(mode):
    pytest.importorskip('mmdet', reason='plugins are MMDetection\'s, the extra "det"')
    from mmdet.models.backbones import ResNet

    plugin = dict(type='NonLocalBlock', mode=mode)
    stages = (False, True, False, False)
    backbone = ResNet(
        50,
        base_channels=8,
        zero_init_residual=False,
        plugins=[dict(cfg=plugin, stages=stages, position='after_conv3')],
    )
    backbone.init_weights()
    blocks = [module for module in backbone.modules() if isinstance(module, NonLocalBlock)]
    assert [block.in_channels for block in blocks] == [64] * 4
    torch.nn.init.normal_(blocks[0].conv_out.conv.weight)
    sum(out.mean() for out in backbone(torch.randn(1, 3, 64, 64))).backward()
    assert blocks[0].g.conv.weight.grad.any()


def test_neck():
    from mmengine.registry import MODELS

    neck = MODELS.build(dict(type='NonLocalNeck', in_channels=[8, 16], mode='dot_product'))
    maps = [torch.randn(2, 8, 6, 6), torch.randn(2, 16, 3, 3)]
    outs = neck(maps)
    assert all(torch.equal(out, x) for out, x in zip(outs, maps))
    random(neck)
    expected = neck.blocks[1](maps[1].double())
    assert torch.equal(neck([x.double() for x in maps])[1], expected)
    with pytest.raises(ValueError, match='in_channels has 2 maps, got 1'):
        neck(maps[:1])


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(mode='cosine'), "Mode should be in .*'dot_product', but got cosine"),
        (dict(dims=4), 'dims must be 1, 2 or 3, got 4'),
        (dict(in_channels=0), 'in_channels .* got 0'),
        (dict(reduction=0), 'reduction .* 0'),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        NonLocalBlock(**dict(dict(in_channels=8), **options))


@pytest.mark.parametrize('shape', [(1, 8, 4), (1, 7, 4, 4), (8, 4, 4)])
def test_bad_input(shape):
    with pytest.raises(ValueError, match=r'x must have shape \(B, 8, H, W\), got '):
        NonLocalBlock(8)(torch.zeros(shape))

"""Non-local blocks in a 3D ResNet, and graphs of regions, on Moving Shapes."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mmlinattn.projects.video import NonLocalR3D, RegionGraph, RegionGraphNeck
from mmlinattn.projects.video.moving_shapes import draw_clip

torchvision = pytest.importorskip('torchvision', reason='torchvision comes with the frameworks')


def network(**kwargs):
    torch.manual_seed(0)
    options = dict(depths=(1, 1, 1, 1), stages=(0,), out_indices=(0,))
    return NonLocalR3D(**{**options, **kwargs})


def test_new_blocks_keep_torchvisions_results():
    theirs = torchvision.models.video.r3d_18(weights=None).eval()
    ours = NonLocalR3D(dict(mode='dot_product'), stages=(1, 2), out_indices=(2, 3)).eval()
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert all(name.startswith('non_local.') for name in missing)
    assert sorted(unexpected) == ['fc.bias', 'fc.weight']
    clip = torch.randn(1, 3, 4, 32, 32)
    with torch.no_grad():
        expected = theirs.layer3(theirs.layer2(theirs.layer1(theirs.stem(clip))))
        out = ours(clip)
    assert torch.equal(out[0], expected) and torch.equal(out[1], theirs.layer4(expected))


def test_blocks_see_the_whole_clip():
    model = network().eval()
    torch.nn.init.normal_(model.non_local['0'].conv_out.conv.weight)
    clip = torch.randn(1, 3, 8, 16, 16)
    other = clip.clone()
    other[:, :, -1] += 1
    with torch.no_grad():
        change = (model(clip) - model(other)).abs().amax((0, 1, 3, 4))
        assert change.shape == (8,) and (change > 0).all()
        model.non_local = torch.nn.ModuleDict()
        assert (model(clip) - model(other)).abs()[:, :, 0].max() == 0


def test_graph_is_its_formula():
    torch.manual_seed(0)
    graph, x = RegionGraph(6, num_layers=2).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    expected = []
    for regions in x:
        a, b = regions @ graph.query.weight.T, regions @ graph.key.weight.T
        weights = torch.stack([torch.stack([i @ j for j in b]).softmax(0) for i in a])
        for layer, norm in zip(graph.layers, graph.norms):
            regions = regions + F.relu(norm(weights @ regions @ layer.weight.T))
        expected.append(regions)
    torch.testing.assert_close(graph(x), torch.stack(expected))
    assert torch.autograd.gradcheck(graph, x.requires_grad_())


def test_missing_regions_change_nothing():
    neck = RegionGraphNeck(4, 6, num_layers=1)
    maps, boxes = torch.randn(1, 4, 2, 5, 7), torch.rand(1, 2, 3, 4)
    boxes[..., 2:] += boxes[..., :2]
    mask = torch.zeros(1, 2, 3, dtype=torch.bool)
    mask[:, :, 2] = True
    few = neck(maps, boxes[:, :, :2])[0]
    torch.testing.assert_close(neck(maps, boxes, mask)[0], few)
    assert torch.isfinite(neck(maps, boxes, torch.ones_like(mask))[0]).all()
    boxes[:, :, 2] = torch.nan  # a usual filler
    found = neck(maps, boxes, mask)[0]
    torch.testing.assert_close(found, few)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in neck.parameters())
    x, hidden = torch.randn(2, 5, 6), torch.tensor([False, False, True, False, True]).expand(2, 5)
    graph = RegionGraph(6)
    nan = x.masked_fill(hidden[..., None], torch.nan)
    torch.testing.assert_close(graph(nan, hidden)[~hidden], graph(x, hidden)[~hidden])


def test_grid_is_boxes():
    neck = RegionGraphNeck(4, 6, grid=(2, 1))
    maps = torch.randn(2, 4, 3, 6, 6)
    halves = torch.tensor([[0, 0, 1, 0.5], [0, 0.5, 1, 1]]).expand(2, 3, 2, 4)
    torch.testing.assert_close(neck(maps)[0], neck(maps, halves)[0])
    torch.testing.assert_close(neck(maps)[0][:, :4], maps.mean((2, 3, 4)))


def clips():
    """A clip of each class of Moving Shapes, at 12 pixels."""
    drawn = [draw_clip(np.random.default_rng(5), label, 32, 8) for label in range(4)]
    frames = torch.tensor(np.stack(drawn)).permute(0, 4, 1, 2, 3).float() / 255 - 0.4
    return F.interpolate(frames, size=(8, 12, 12), mode='area'), torch.arange(4)


def test_neck_in_bfloat16():
    torch.manual_seed(0)
    neck, x = RegionGraphNeck(4, 8, grid=2), torch.randn(2, 4, 3, 5, 5)
    (expected,) = neck(x)
    (out,) = neck.bfloat16()(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.05)


def test_learns_four_clips_of_moving_shapes():
    """The clips have the same frames in four orders."""
    pytest.importorskip('mmpretrain', reason='MMPretrain comes with the extra "cls"')
    from mmpretrain.structures import DataSample

    from mmlinattn.projects.video import VideoRecognizer

    backbone = dict(
        type='NonLocalR3D', non_local=dict(mode='dot_product'), stages=(0,), out_indices=(0,),
        depths=(1, 1, 1, 1),
    )  # fmt: skip
    neck = dict(type='RegionGraphNeck', in_channels=64, out_channels=16, num_layers=2)
    head = dict(type='mmpretrain.LinearClsHead', num_classes=4, in_channels=80)
    torch.manual_seed(0)
    model = VideoRecognizer(backbone, head, neck)
    x, labels = clips()
    samples = [DataSample().set_gt_label(int(label)) for label in labels]
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(20):
        losses.append(model.loss(x[:, None], samples)['loss'])
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert all(p.grad is not None for p in model.parameters())
    assert losses[-1] < 0.4 < losses[0]


@pytest.mark.parametrize(
    'make, error',
    [
        (lambda: network(stages=(4,)), r'stages must be in 0..3, got \(4,\)'),
        (lambda: network(out_indices=()), 'out_indices must name a stage'),
        (lambda: network(depths=(1, 1)), 'depths must have 4 values'),
        (lambda: RegionGraph(4, num_layers=0), 'num_layers must be .* got 0'),
        (lambda: RegionGraph(4)(torch.zeros(2, 3, 5)), r'\(B, R, 4\), got \(2, 3, 5\)'),
        (lambda: RegionGraphNeck(4, grid=(0, 2)), r'grid must be a positive .* got \(0, 2\)'),
        (lambda: RegionGraphNeck(4, roi_size=0), 'roi_size must be .* got 0'),
        (lambda: RegionGraphNeck(4)(torch.zeros(2, 4, 3, 5, 5), None, torch.zeros(2, 3, 2) > 0),
         r'mask must be bool of shape .* \(2, 3, 9\), got torch.bool \(2, 3, 2\)'),
        (lambda: RegionGraphNeck(4)(torch.zeros(2, 4, 3, 5, 5), None, torch.zeros(2, 3, 9)),
         'got torch.float32'),
        (lambda: RegionGraphNeck(4)(torch.zeros(2, 4, 3, 5)), r'\(B, 4, T, H, W\)'),
        (lambda: RegionGraphNeck(4)(torch.zeros(2, 4, 3, 5, 5), torch.zeros(2, 2, 1, 4)),
         'B=2, T=3 of the map'),
    ],
)  # fmt: skip
def test_bad_options_are_named(make, error):
    with pytest.raises(ValueError, match=error):
        make()

"""What a query looks at, against the definition, on models with random weights."""

import numpy as np
import pytest
import torch

from mmlinattn.app import View, explain, views_of
from mmlinattn.app.crop_transform import Grid
from mmlinattn.app.explain import OPACITY, AttentionMap, attention_map, draw_map
from mmlinattn.models.layers.attend_calls import calls_of
from mmlinattn.visualization.attention_maps import record
from mmlinattn.visualization.key_weights import weight_colors

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)


def view_of(predictor, end):
    (view,) = (view for view in views_of(predictor.model) if view.title.endswith(end))
    return view


def test_views(predictor):
    kinds = [view.kind for view in views_of(predictor('smca').model)]
    layers = predictor('smca').model
    rings, decoder = len(layers.encoder.layers), len(layers.decoder.layers)
    assert kinds == ['keys', 'rings'] * rings + ['gaussians'] * decoder
    titles = [view.title for view in views_of(predictor('seg').model)]
    assert titles[0] == 'backbone.stages.0.0: RALA, keys' and len({*titles}) == len(titles) == 5


@pytest.mark.parametrize('enlarge', [1, 3])
def test_keys_are_the_row_of_softmax(predictor, enlarge):
    """The kernel of softmax attention by hand, and each cell's colour where the cell is."""
    segmentor = predictor('seg')
    view = view_of(segmentor, 'stages.2.0: Softmax, keys')
    found = explain(segmentor, IMAGE, view, (37, 50), enlarge)
    attn = segmentor.model.get_submodule(view.module)
    with calls_of(attn) as calls:
        segmentor(IMAGE)
    ((q, k, _, tokens),) = calls
    assert tokens.hw_shape == (4, 6)  # 16 pixels a cell: the query is in row 3, column 2
    row = (
        (q[0] @ k[0].mT / q.shape[-1] ** 0.5).softmax(-1)[:, 3 * 6 + 2].mean(0).unflatten(0, (4, 6))
    )
    colors, side = weight_colors(row), 16 * enlarge
    assert found.picture.shape == (64 * enlarge, 96 * enlarge, 3)
    assert 'the query in row 4, column 3 of 4 x 6 cells' in found.text
    assert 'Shown: mean over the heads.' in found.text and view.heads == attn.num_heads > 1
    for y in range(4):
        for x in range(6):
            if (y, x) == (3, 2):
                continue  # the mark
            cell = found.picture[y * side : (y + 1) * side, x * side : (x + 1) * side].astype(float)
            grey = IMAGE[y * 16 : (y + 1) * 16, x * 16 : (x + 1) * 16].mean() * 0.35 + 0.65 * 255
            alpha = OPACITY * colors[y, x, 3]
            wanted = grey * (1 - alpha) + 255 * colors[y, x, :3] * alpha
            np.testing.assert_allclose(cell.mean((0, 1)), wanted, atol=4)
    mark = found.picture[3 * side : 4 * side, 2 * side : 3 * side]
    assert (mark > 230).all(-1).any() and (mark < 60).all(-1).any()


def test_nothing_stays_behind(predictor):
    """The model has no hook and no changed method after it, and says the same."""
    segmentor = predictor('seg')
    before = segmentor.predict(IMAGE).sample.seg_logits.data
    for view in views_of(segmentor.model):
        explain(segmentor, IMAGE, view, (0, 0))
    assert torch.equal(segmentor.predict(IMAGE).sample.seg_logits.data, before)
    assert all('attend' not in vars(m) for m in segmentor.model.modules())
    assert not any(m._forward_pre_hooks for m in segmentor.model.modules())


def test_rings(predictor):
    detector = predictor('smca')
    view = view_of(detector, 'encoder.layers.0: Ripple, rings')
    pixel = (70, 30)
    found = explain(detector, IMAGE, view, pixel)
    with record(detector.model) as seen:
        detector(IMAGE)
    stride = detector.model.decoder.stride
    # The network sees the image in another size; a cell's middle is at a multiple of the stride.
    height, width = detector(IMAGE).sample.img_shape[:2]
    column, row = (
        round(((at + 0.5) * size / full - 0.5) / stride)
        for at, size, full in zip(pixel, (width, height), (96, 64))
    )
    assert f'row {row + 1}, column {column + 1} of ' in found.text
    weights = seen.ring_weights[0][:, row * seen.hw_shape[1] + column].mean(0)
    assert ', '.join(f'{weight:.3f}' for weight in weights.tolist()) in found.text


def test_gaussians(predictor):
    detector = predictor('smca')
    view = view_of(detector, 'decoder.layers.1: Gaussians of the object')
    found = explain(detector, IMAGE, view, (20, 20))
    with record(detector.model) as seen:
        detector(IMAGE)
    query = int(found.text.split()[2].rstrip(':'))
    centre, size = seen.boxes[query, :2], seen.boxes[query, 2:]
    at = torch.tensor([20.5 / 96, 20.5 / 64])
    has = ((at - seen.boxes[:, :2]).abs() <= seen.boxes[:, 2:] / 2).all(-1)
    best = seen.scores.amax(-1)
    if has.any():
        assert ((at - centre).abs() <= size / 2).all() and best[query] == best[has].max()
    assert view.heads == len(seen.maps[1]) > 1
    assert f'{best[query]:.2f}, the red box' in found.text and 'decoder layer 2' in found.text
    assert found.picture.shape == IMAGE.shape and found.picture.std() > 1


def test_errors(predictor):
    segmentor = predictor('seg')
    views = views_of(segmentor.model)
    for pixel in ((96, 0), (0, 64), (-1, 0)):
        with pytest.raises(ValueError, match='is not on an image of 96 x 64'):
            explain(segmentor, IMAGE, views[0], pixel)
    test_cfg = segmentor.model.test_cfg
    segmentor.model.test_cfg = type(test_cfg)(mode='slide', crop_size=(64, 64), stride=(32, 32))
    try:
        with pytest.raises(ValueError, match='reads an image of 96 x 64 in 2 crops'):
            explain(segmentor, IMAGE, views[0], (0, 0))
    finally:
        segmentor.model.test_cfg = test_cfg
    with pytest.raises(AttributeError, match='nowhere'):
        explain(segmentor, IMAGE, View('x', 'keys', 'nowhere'), (0, 0))


def drawn(weights, kind='keys', **options):
    """A map of 2 x 4 cells over a grey image of 8 x 16 pixels."""
    grid = Grid((2, 4), (0.25, 0.25), (-0.375, -0.375))
    found = AttentionMap(kind, torch.tensor(weights).float(), grid, (1.5, 1.5), 'Here.')
    return draw_map(found, np.full((8, 16, 3), 128, np.uint8), **options)


def strength(picture):
    """How much redder than grey the cells are, without those beside the mark."""
    return (picture[..., 0].astype(int) - picture[..., 2])[:, 12:]


UNIFORM, PEAK = [[[1.0] * 4] * 2], [[[0.0, 0, 0, 1.0], [0, 0, 0, 0]]]


def test_a_uniform_row_is_faint_and_said():
    even, peak = drawn(UNIFORM), drawn(PEAK)
    assert 'nearly uniform.' in even.text and 'uniform' not in peak.text
    assert np.ptp(strength(even.picture)) == 0 and 10 < strength(even.picture)[0, 0] < 60
    assert strength(peak.picture).max() > 120 and strength(peak.picture).min() == 0
    assert even.bar.ticks == [(0.0, '0'), (pytest.approx(0.2), 'uniform'), (1.0, '5.0 x uniform')]
    assert peak.bar.ticks[-1] == (1.0, '8.0 x uniform')


def test_the_bar_has_the_colours_of_the_map():
    for opacity in (0.3, 1.0):
        found = drawn(PEAK, opacity=opacity)
        assert found.bar.colors[-1] == tuple(found.picture[1, 14])  # the same grey below
        assert found.bar.colors[0] == tuple(found.picture[6, 14])
    signed = drawn([[[-1.0, 0, 0, 1.0], [0] * 4]])
    assert 'Red adds, blue takes away.' in signed.text and signed.bar.ticks[0] == (0.0, '-5.0')
    assert signed.bar.colors[0][2] > 200 > 100 > signed.bar.colors[0][0]
    heat = drawn(UNIFORM, kind='rings', opacity=1.0)
    assert heat.bar.ticks == [(0.0, '0'), (1.0, '1')] and 'nearly the same' in heat.text
    assert heat.bar.colors[-1] == tuple(heat.picture[6, 14])
    assert not drawn(PEAK, opacity=0.0).picture[:, 12:].std()


def test_heads():
    both = UNIFORM + PEAK
    assert 'Shown: one head.' in drawn(PEAK).text
    for head, expected in ((0, UNIFORM), (1, PEAK)):
        found = drawn(both, head=head)
        np.testing.assert_array_equal(found.picture, drawn(expected).picture)
        assert f'Shown: head {head + 1} of 2.' in found.text
    mean = (torch.tensor(UNIFORM) + torch.tensor(PEAK)) / 2
    np.testing.assert_array_equal(drawn(both).picture, drawn(mean.tolist()).picture)
    with pytest.raises(ValueError, match='head 2 is not one of the 2 heads'):
        drawn(both, head=2)


def test_map_and_drawing_are_explain(predictor):
    segmentor = predictor('seg')
    view = view_of(segmentor, 'stages.2.0: Softmax, keys')
    found = attention_map(segmentor, IMAGE, view, (3, 4), 2)
    assert found.weights.shape == (view.heads, 4, 6)
    expected = explain(segmentor, IMAGE, view, (3, 4), 2, head=1, opacity=0.5)
    np.testing.assert_array_equal(draw_map(found, IMAGE, 2, 1, 0.5).picture, expected.picture)

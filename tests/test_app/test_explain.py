"""What a query looks at, against the definition, on models with random weights."""

import numpy as np
import pytest
import torch

from mmlinattn.app import View, explain, views_of
from mmlinattn.visualization.attention_maps import record
from mmlinattn.visualization.key_weights import calls_of, weight_colors

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
    assert f'mean over {attn.num_heads} heads' in found.text
    for y in range(4):
        for x in range(6):
            if (y, x) == (3, 2):
                continue  # the mark
            cell = found.picture[y * side : (y + 1) * side, x * side : (x + 1) * side].astype(float)
            grey = IMAGE[y * 16 : (y + 1) * 16, x * 16 : (x + 1) * 16].mean() * 0.35 + 0.65 * 255
            alpha = colors[y, x, 3]
            wanted = grey * (1 - alpha) + 255 * colors[y, x, :3] * alpha
            np.testing.assert_allclose(cell.mean((0, 1)), wanted, atol=4)
    mark = found.picture[3 * side : 4 * side, 2 * side : 3 * side]
    assert (mark > 230).all(-1).any() and (mark < 60).all(-1).any()


def test_nothing_stays_behind(predictor):
    """The model has no hook and no changed method after it, and says the same."""
    segmentor = predictor('seg')
    before = segmentor(IMAGE).sample.seg_logits.data
    for view in views_of(segmentor.model):
        explain(segmentor, IMAGE, view, (0, 0))
    assert torch.equal(segmentor(IMAGE).sample.seg_logits.data, before)
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

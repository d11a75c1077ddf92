"""The attention of a token, against the definition, on models with random weights."""

import re

import numpy as np
import pytest
import torch

from mmlinattn.app import attention_layers, attention_of
from mmlinattn.models.layers.attend_calls import calls_of
from mmlinattn.visualization.key_weights import overlay

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)


def test_layers(predictor):
    """Without the decoder of SMCA, whose object queries have no place in the image."""
    encoder = len(predictor('smca').model.encoder.layers)
    expected = [f'encoder.layers.{i}.self_attn' for i in range(encoder)]
    assert attention_layers(predictor('smca').model) == expected
    found = attention_layers(predictor('seg').model)
    assert found[0] == 'backbone.stages.0.0.attn' and len(found) == 5


def test_the_row_of_softmax(predictor):
    """The kernel of softmax attention by hand, and each cell's colour where the cell is."""
    segmentor, layer = predictor('seg'), 'backbone.stages.2.0.attn'
    picture, text = attention_of(segmentor, IMAGE, layer, (5 * 40, 5 * 56))
    with calls_of(segmentor.model.get_submodule(layer)) as calls:
        segmentor(IMAGE)
    ((q, k, _, tokens),) = calls
    assert tokens.hw_shape == (4, 6)  # 16 pixels a cell: the token is in row 3, column 2
    row = (q[0] @ k[0].mT / q.shape[-1] ** 0.5).softmax(-1)[:, 3 * 6 + 2].mean(0)
    expected = overlay(IMAGE.repeat(5, 0).repeat(5, 1), row.unflatten(0, (4, 6)))
    assert picture.shape == expected.shape == (5 * 64, 5 * 96, 3)
    assert 'the token in row 4, column 3 of 4 x 6' in text
    marked = (slice(3 * 80, 4 * 80), slice(2 * 80, 3 * 80))
    assert (picture[marked] == 255).all(-1).any() and (picture[marked] == 0).all(-1).any()
    picture[marked] = expected[marked] = 0
    assert abs(picture.astype(int) - expected).max() <= 1


@pytest.mark.parametrize('name', ['smca', 'cls', 'det'])
def test_the_network_sees_what_is_shown(predictor, name):
    """Resized, cropped or padded by the pipeline, in the size of the input."""
    model = predictor(name)
    for layer in attention_layers(model.model):
        picture, text = attention_of(model, IMAGE[:50, :70].copy(), layer)
        data = model.model.data_preprocessor(model.batch_of(IMAGE[:50, :70].copy()), False)
        height, width = data['inputs'].shape[-2:]
        # With what the backbone pads: tokens are squares.
        rows, columns = map(int, re.search(r' of (\d+) x (\d+)\.', text).groups())
        assert picture.shape[0] * columns == picture.shape[1] * rows
        assert picture.shape[0] >= height and picture.shape[1] >= width
        assert max(picture.shape) > 256 and '% of the keys' in text


def test_nothing_stays_behind(predictor):
    segmentor = predictor('seg')
    before = segmentor.predict(IMAGE).sample.seg_logits.data
    for layer in attention_layers(segmentor.model):
        attention_of(segmentor, IMAGE, layer, (0, 0))
    assert torch.equal(segmentor.predict(IMAGE).sample.seg_logits.data, before)
    assert all('attend' not in vars(m) for m in segmentor.model.modules())


def test_errors(predictor):
    segmentor = predictor('seg')
    layer = attention_layers(segmentor.model)[0]
    for pixel in ((480, 0), (0, 320), (-1, 0)):
        with pytest.raises(ValueError, match='is not on the input of 480 x 320'):
            attention_of(segmentor, IMAGE, layer, pixel)
    test_cfg = segmentor.model.test_cfg
    segmentor.model.test_cfg = type(test_cfg)(mode='slide', crop_size=(64, 64), stride=(32, 32))
    try:
        with pytest.raises(ValueError, match="ran 2 times: .*test_cfg.mode='whole'"):
            attention_of(segmentor, IMAGE, layer)
    finally:
        segmentor.model.test_cfg = test_cfg

"""Principal components of filters and similarity of positions, and their picture."""

import math
import re

import cv2
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from mmengine.registry import MODELS, DefaultScope

from mmlinattn import __main__ as program
from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.engine.config import load_config
from mmlinattn.models.backbones import ViT
from mmlinattn.visualization.patch_embedding import (
    draw_patch_embedding,
    filter_colors,
    position_similarity,
    principal_filters,
    tile,
)

CONFIG = 'configs/zoo/deit-nano_shapes.py'
ARCH = dict(embed_dims=32, num_heads=2, depth=1, patch_size=4)


def test_principal_filters_are_the_eigenvectors_of_the_covariance():
    # One strong direction after another, around a mean that is no component.
    basis = torch.linalg.qr(torch.randn(3 * 4 * 5, 60, dtype=torch.float64))[0]
    spread = torch.randn(200, 60, dtype=torch.float64) * 2.0 ** -torch.arange(60.0)
    weight = (spread @ basis.T + 3).view(200, 3, 4, 5)
    found = principal_filters(weight, 6)
    values, vectors = np.linalg.eigh(np.cov(weight.flatten(1).numpy(), rowvar=False))
    for component, vector in zip(found.flatten(1).numpy(), vectors.T[::-1]):
        vector = vector * np.sign(vector[abs(vector).argmax()])
        np.testing.assert_allclose(component, vector, atol=1e-8)
    variances = (weight.flatten(1) @ found.flatten(1).T).var(0)
    np.testing.assert_allclose(variances, values[::-1][:6], rtol=1e-8)


def test_position_similarity_is_the_cosine_of_each_pair():
    positions = torch.randn(6, 5, dtype=torch.float64)
    found = position_similarity(positions, (2, 3))
    for i, a in enumerate(positions.tolist()):
        for j, b in enumerate(positions.tolist()):
            cosine = sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)
            assert found[i // 3, i % 3, j // 3, j % 3] == pytest.approx(cosine)


def test_tiles_are_where_their_images_are():
    joined = tile(np.arange(24.0).reshape(2, 3, 2, 2), -1)
    assert joined.shape == (5, 8)
    np.testing.assert_array_equal(joined[3:, 6:], [[20, 21], [22, 23]])
    assert (joined[2] == -1).all() and (joined[:, [2, 5]] == -1).all() and (joined < 0).sum() == 16


def test_colors_of_filters_reach_from_0_to_1():
    filters = torch.randn(4, 3, 5, 5)
    colors = filter_colors(filters)
    assert colors.shape == (4, 5, 5, 3)
    for picture, values in zip(colors, filters.permute(0, 2, 3, 1).numpy()):
        assert (picture.min(), picture.max()) == (0, 1)
        np.testing.assert_array_equal(picture.argmax(), values.argmax())
    grey = filter_colors(torch.randn(2, 1, 5, 5))
    assert (grey[..., 0] == grey[..., 2]).all()


def test_picture_shows_what_is_computed(tmp_path, monkeypatch):
    drawn = []
    imshow = Axes.imshow
    monkeypatch.setattr(
        Axes, 'imshow', lambda self, x, **kw: drawn.append(x) or imshow(self, x, **kw)
    )
    embed = ViT(ARCH, img_size=(12, 20)).embed
    path = draw_patch_embedding(tmp_path / 'new' / 'a.png', embed, count=5, columns=3)
    assert cv2.imread(str(path)).std() > 0
    filters, positions = drawn
    assert filters.shape == (2 * 5 - 1, 3 * 5 - 1, 3)
    expected = filter_colors(principal_filters(embed.proj.weight, 5))
    np.testing.assert_array_equal(filters[5:, 5:9], expected[4])
    assert (filters[5:, 10:] == 1).all()
    # The class token, which comes first, has no place in the map of 3 x 5.
    similarity = position_similarity(embed.pos_embed[0, 1:], (3, 5))
    np.testing.assert_array_equal(positions[4:7, 6:11], similarity[1, 1])
    drawn.clear()
    draw_patch_embedding(tmp_path / 'b.png', ViT(ARCH, pos_embed=False).embed, count=5)
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda: principal_filters(torch.ones(4, 3, 2)), r'\(D, C, h, w\), got \(4, 3, 2\)'),
        (lambda: principal_filters(torch.ones(4, 3, 2, 2), 5), r'count must be in 1\.\.4, got 5'),
        (lambda: principal_filters(torch.ones(4, 3, 2, 2), 0), r'count must be in 1\.\.4, got 0'),
        (
            lambda: position_similarity(torch.ones(7, 8), (2, 3)),
            r'shape \(6, C\) for a map of \(2, 3\), got \(7, 8\)',
        ),
        (
            lambda: draw_patch_embedding('a.png', ViT(ARCH).embed, 5, columns=0),
            'columns must be positive, got 0',
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_another_module_is_refused():
    with pytest.raises(TypeError, match='ViTPatchEmbed of a ViT, got Linear'):
        draw_patch_embedding('a.png', torch.nn.Linear(2, 2))


@pytest.fixture
def tool(root, tmp_path):
    """tool(*arguments, config=...): run the tool for the weights of a random model."""

    def call(*arguments, config=CONFIG):
        cfg = load_config(str(root / config))
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            save_checkpoint(tmp_path / 'a.pth', MODELS.build(cfg.model).state_dict(), {})
        arguments = [root / config, tmp_path / 'a.pth', *arguments]
        program.main(['analyze', 'patch-embedding', *map(str, arguments)])

    return call


def test_command_line(tool, tmp_path, capsys):
    tool('--components', 9, '--out', tmp_path / 'out.png')
    assert str(tmp_path / 'out.png') in capsys.readouterr().out
    assert cv2.imread(str(tmp_path / 'out.png')).std() > 0


@pytest.mark.parametrize(
    ('arguments', 'config', 'message'),
    [
        (('--out', 'a.docx'), CONFIG, "--out must end with one of .*got 'a.docx'"),
        (('--components', 99999), CONFIG, r'count must be in 1\.\.\d+, got 99999'),
        ((), 'configs/zoo/ravlt-nano_shapes.py', 'must have a ViT as its backbone, got RAVLT'),
    ],
)
def test_command_line_says_what_is_wrong(tool, capsys, arguments, config, message):
    with pytest.raises(SystemExit) as error:
        tool(*arguments, config=config)
    assert error.value.code == 2 and re.search(message, capsys.readouterr().err)

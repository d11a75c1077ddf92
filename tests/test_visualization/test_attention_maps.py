"""Pictures of where SMCA looks."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.models.layers import ripple
from mmlinattn.visualization import attention_maps
from mmlinattn.visualization.attention_maps import (
    AttentionRecord,
    draw_decoder_maps,
    draw_ring_weights,
    record,
    ring_map,
)

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')
from mmdet.structures import DetDataSample


def test_ring_map_by_hand():
    weights = torch.tensor([[5.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    found = ring_map(weights, (1, 0), (3, 4))
    assert found[0].tolist() == [[3, 3, 1, 1], [5, 3, 1, 1], [3, 3, 1, 1]]
    assert found[1, 1].tolist() == [0, 1, 2, 2]
    with pytest.raises(ValueError, match=r'position \(3, 0\) is not on a map of \(3, 4\)'):
        ring_map(weights, (3, 0), (3, 4))


def test_ring_map_of_logarithmic_groups():
    """Rings end at distances 0, 1, 3."""
    found = ring_map(torch.tensor([0.4, 0.3, 0.2, 0.1]), (1, 4), (3, 9), 'log')
    row = torch.tensor([0.1, 0.2, 0.2, 0.3, 0.4, 0.3, 0.2, 0.2, 0.1])
    assert torch.equal(found[1], row)
    assert (ring_map(torch.tensor([7.0]), (1, 4), (3, 9), 'log') == 7).all()


@pytest.fixture
def build(root):
    """build(config, **options of the attention): a detector, initialised, in eval mode."""

    def call(name, **attn_cfg):
        cfg = Config.fromfile(root / f'configs/smca/{name}.py')
        cfg.model.encoder.layer_cfg.attn_cfg.update(attn_cfg)
        with DefaultScope.overwrite_default_scope('mmdet'):
            model = MODELS.build(cfg.model)
            model.init_weights()
        for name, parameter in model.named_parameters():
            if name.endswith('.units'):
                nn.init.normal_(parameter)  # weights that differ
        return model.eval()

    return call


@pytest.fixture
def model(build):
    return build('smca_nano_shapes')


def forward(model) -> dict:
    """The outputs of the decoder for a map of (4, 6)."""
    sample = DetDataSample(metainfo=dict(img_shape=(64, 96), batch_input_shape=(64, 96)))
    return model.forward_transformer((torch.randn(1, 128, 4, 6),), [sample])


def test_record_keeps_what_the_decoder_used(model):
    with record(model) as seen:
        inputs = forward(model)
        _, boxes = model.bbox_head(**inputs)
    assert seen.hw_shape == (4, 6) and sorted(seen.maps) == [0, 1, 2]
    assert seen.maps[0].shape == (4, 50, 24) and seen.maps[0].max() <= 0
    cells = torch.tensor([96.0, 64.0]) / 16
    torch.testing.assert_close(seen.reference, inputs['references'][0].sigmoid() * cells)
    torch.testing.assert_close(seen.boxes, boxes[-1, 0])
    best = seen.best(3)
    assert seen.scores[best[0]].max() == seen.scores.max() and len(best) == 3
    assert not model.decoder._forward_hooks


@pytest.mark.parametrize('weights', ['stick', 'softmax', 'fixed', 'truncated'])
def test_recorded_rings_are_those_of_the_operator(build, monkeypatch, weights):
    model = build('smca-ripple_nano_shapes', weights=weights)
    operator, used = ripple.ripple_attention, []

    def keep(*tensors, **options):
        used.append(tensors[3])
        return operator(*tensors, **options)

    monkeypatch.setattr(ripple, 'ripple_attention', keep)
    with record(model) as seen:
        forward(model)
    for i in (0, 1):
        torch.testing.assert_close(seen.ring_weights[i], used[i].reshape(4, 24, 5))


@pytest.mark.parametrize('groups', ['chebyshev', 'log'])
def test_rings_are_drawn(build, tmp_path, monkeypatch, groups):
    model = build('smca-ripple_nano_shapes', groups=groups, max_distance=3)
    with record(model) as seen:
        forward(model)
    assert sorted(seen.ring_weights) == [0, 1] and seen.ring_weights[0].shape == (4, 24, 4)
    assert seen.ring_groups == {0: groups, 1: groups}
    image = np.zeros((64, 96, 3), np.uint8)
    drawn = []
    draw_map = attention_maps._draw_map
    monkeypatch.setattr(
        attention_maps, '_draw_map', lambda *args: drawn.append(args) or draw_map(*args)
    )
    assert draw_ring_weights(tmp_path / 'rings.png', image, seen, 16, (1, 2)).is_file()
    rings = dict(chebyshev=[2, 1, 0, 1, 2, 3], log=[2, 1, 0, 1, 2, 2])[groups]
    expected = [w[1 * 6 + 2, rings] for i in (0, 1) for w in seen.ring_weights[i]]
    assert torch.equal(torch.stack([args[2][1] for args in drawn]), torch.stack(expected))
    for axes, *_ in drawn:
        assert axes.lines[0].get_xydata().tolist() == [[16 * 2, 16 * 1]]


def test_a_record_of_no_image_has_no_queries():
    assert AttentionRecord().best(2) == []


def test_pixels_of_a_map(tmp_path):
    """A map that is 1 in cell (1, 1) lights up the 16 pixels around pixel (16, 16)."""
    seen = AttentionRecord(hw_shape=(2, 3), reference=torch.ones(1, 2), scores=torch.ones(1, 1))
    seen.boxes = torch.full((1, 4), 0.5)
    seen.maps = {0: torch.tensor([[[-99.0, -99, -99, -99, 0, -99]]])}
    image = np.zeros((32, 48, 3), np.uint8)
    found = cv2.imread(str(draw_decoder_maps(tmp_path / 'a.png', image, seen, 16, ['x'])))
    # The right half of the picture has the map, under a title.
    panel = found[:, found.shape[1] // 2 :].astype(int).sum(-1)
    rows = np.flatnonzero((panel < 700).mean(1) > 0.8)
    columns = np.flatnonzero((panel < 700).mean(0) > 0.6)
    panel = panel[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    bright = np.argwhere((panel > 300) & (panel < 700))
    corners = np.stack([bright.min(0), bright.max(0) + 1]) / panel.shape
    np.testing.assert_allclose(corners * (32, 48), [[8, 8], [24, 24]], atol=0.5)
    # The point, which is white, is in the middle of its cell.
    point = np.argwhere(panel == 765).mean(0) / panel.shape * (32, 48)
    np.testing.assert_allclose(point, [16, 16], atol=0.5)


@pytest.fixture
def visualize(root, build, tmp_path):
    """visualize(config, *arguments): runs the tool for a random model and a grey image."""
    cv2.imwrite(str(tmp_path / 'image.jpg'), np.full((64, 96, 3), 90, np.uint8))

    def call(name, *arguments):
        torch.save(dict(state_dict=build(name).state_dict()), tmp_path / 'model.pth')
        files = [root / f'configs/smca/{name}.py', tmp_path / 'model.pth', tmp_path / 'image.jpg']
        arguments = [*files, '--out-dir', tmp_path / 'out', *arguments]
        program.main(['analyze', 'attention', *map(str, arguments)])

    return call


def test_command_line(visualize, tmp_path, capsys):
    visualize('smca_nano_shapes')
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['image_decoder.png']
    assert 'no picture of rings' in capsys.readouterr().out
    for arguments in ((), ('--position', 95, 63)):
        visualize('smca-ripple_nano_shapes', *arguments)
        rings = tmp_path / 'out/image_rings.png'
        assert cv2.imread(str(rings)).std() > 0
        rings.unlink()


@pytest.mark.parametrize(
    'arguments, message',
    [
        (('--position', 96, 0), r'--position 96 0 is not on the resized image, 96 x 64'),
        (('--position', 0, -1), r'--position 0 -1 is not on'),
        (('--queries', 0), r'--queries must be positive, got 0'),
    ],
)
def test_command_line_refuses(visualize, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        visualize('smca-ripple_nano_shapes', *arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()

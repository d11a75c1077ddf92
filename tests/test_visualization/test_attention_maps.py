"""Pictures of where SMCA looks."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmlinattn import __main__ as program
from mmlinattn.visualization.attention_maps import AttentionRecord, draw_decoder_maps, record

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')
from mmdet.structures import DetDataSample


@pytest.fixture
def build(root):
    """build(config): a detector, initialised, in eval mode."""

    def call(name):
        cfg = Config.fromfile(root / f'configs/smca/{name}.py')
        with DefaultScope.overwrite_default_scope('mmdet'):
            model = MODELS.build(cfg.model)
            model.init_weights()
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


def test_a_record_of_no_image_has_no_queries():
    assert AttentionRecord().best(2) == []


def test_pixels_of_a_map(tmp_path):
    """A map that is 1 in cell (1, 1) lights up the 16 pixels around pixel (16, 16)."""
    seen = AttentionRecord(hw_shape=(2, 3), reference=torch.ones(1, 2), scores=torch.ones(1, 1))
    seen.boxes = torch.full((1, 4), 0.5)
    seen.maps = {0: torch.tensor([[[-99.0, -99, -99, -99, 0, -99]]])}
    image = np.zeros((32, 48, 3), np.uint8)
    found = cv2.imread(
        str(draw_decoder_maps(tmp_path / 'a.png', image, seen, 16, ['$x$ $\\frac$']))
    )
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
    assert 'image_decoder.png' in capsys.readouterr().out


def test_command_line_refuses(visualize, tmp_path, error_of):
    error = error_of(visualize, 'smca_nano_shapes', '--queries', 0)
    assert '--queries must be positive, got 0' in error
    assert not (tmp_path / 'out').exists()
    (tmp_path / 'out').touch()
    error = error_of(visualize, 'smca_nano_shapes', '--device', 'nowhere')  # found later
    assert f'cannot be written: {tmp_path / "out"} is a file' in error

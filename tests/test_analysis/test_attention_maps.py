"""Pictures of where SMCA looks."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmlinattn.analysis import attention_maps
from mmlinattn.analysis.attention_maps import (
    Record,
    draw_decoder_maps,
    draw_ring_weights,
    record,
    ring_map,
)

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')


def test_ring_map_by_hand():
    weights = torch.tensor([[5.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    found = ring_map(weights, (1, 0), (3, 4))
    assert found[0].tolist() == [[3, 3, 1, 1], [5, 3, 1, 1], [3, 3, 1, 1]]
    assert found[1, 1].tolist() == [0, 1, 2, 2]
    with pytest.raises(ValueError, match=r'position \(3, 0\) is not on a map of \(3, 4\)'):
        ring_map(weights, (3, 0), (3, 4))


@pytest.fixture
def model(root):
    cfg = Config.fromfile(root / 'configs/smca/smca_nano_shapes.py')
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model).eval()
    model.cfg = cfg
    return model


def test_record_keeps_what_the_decoder_used(model):
    from mmdet.structures import DetDataSample

    meta = dict(img_shape=(64, 96), batch_input_shape=(64, 96))
    feat = torch.randn(1, 128, 4, 6)
    with record(model) as seen:
        inputs = model.forward_transformer((feat,), [DetDataSample(metainfo=meta)])
        _, boxes = model.bbox_head(**inputs)
    assert seen.hw_shape == (4, 6) and sorted(seen.maps) == [0, 1, 2]
    assert seen.maps[0].shape == (4, 50, 24) and seen.maps[0].max() <= 0
    cells = torch.tensor([96.0, 64.0]) / 16
    torch.testing.assert_close(seen.reference, inputs['references'][0].sigmoid() * cells)
    torch.testing.assert_close(seen.boxes, boxes[-1, 0])
    best = seen.best(3)
    assert seen.scores[best[0]].max() == seen.scores.max() and len(best) == 3
    assert not model.decoder._forward_hooks


def test_record_of_another_model():
    with (
        pytest.raises(TypeError, match='must be a SMCA detector, got Linear'),
        record(nn.Linear(2, 2)),
    ):
        pass


def test_rings_are_recorded_and_drawn(model, tmp_path, monkeypatch):
    attn = type(model.encoder.layers[0].self_attn)
    # (B, heads, N, d) values to (B, heads, N, rings).
    monkeypatch.setattr(attn, 'spatial_weights', lambda _, v: v[..., :3].softmax(-1), raising=False)
    from mmdet.structures import DetDataSample

    meta = dict(img_shape=(64, 96), batch_input_shape=(64, 96))
    with record(model) as seen:
        model.forward_transformer((torch.randn(1, 128, 4, 6),), [DetDataSample(metainfo=meta)])
    assert sorted(seen.ring_weights) == [0, 1] and seen.ring_weights[0].shape == (4, 24, 3)
    image = np.zeros((64, 96, 3), np.uint8)
    drawn = []
    draw_map = attention_maps._draw_map
    monkeypatch.setattr(
        attention_maps, '_draw_map', lambda *args: drawn.append(args[2]) or draw_map(*args)
    )
    assert draw_ring_weights(tmp_path / 'rings.png', image, seen, 16, (1, 2)).is_file()
    in_the_middle = [float(values[1, 2]) for values in drawn]
    assert in_the_middle == [float(w[1 * 6 + 2, 0]) for i in (0, 1) for w in seen.ring_weights[i]]
    with pytest.raises(ValueError, match='no attention'):
        draw_ring_weights(tmp_path / 'none.png', image, Record(), 16, (1, 2))


def test_pixels_of_a_map(tmp_path):
    """A map that is 1 in one cell lights up the pixels of that cell."""
    seen = Record(hw_shape=(2, 3), reference=torch.zeros(1, 2), scores=torch.ones(1, 1))
    seen.boxes = torch.full((1, 4), 0.5)
    seen.maps = {0: torch.tensor([[[-99.0, -99, -99, -99, 0, -99]]])}
    image = np.zeros((32, 48, 3), np.uint8)
    found = cv2.imread(str(draw_decoder_maps(tmp_path / 'a.png', image, seen, 16, ['x'])))
    # The right half of the picture has the map.
    panel = found[:, found.shape[1] // 2 :].astype(int).sum(-1)
    bright = np.argwhere((panel > 300) & (panel < 700))
    assert len(bright) > 100
    rows, columns = bright.mean(0) / panel.shape
    assert rows > 0.55 and 0.4 < columns < 0.6


def test_command_line(root, model, tmp_path, monkeypatch, capsys):
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'model.pth')
    cv2.imwrite(str(tmp_path / 'image.jpg'), np.full((64, 96, 3), 90, np.uint8))
    spec = spec_from_file_location('tool', root / 'tools/analysis_tools/visualize_attention.py')
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    config = root / 'configs/smca/smca_nano_shapes.py'
    arguments = [config, tmp_path / 'model.pth', tmp_path / 'image.jpg', '--out-dir', tmp_path]
    monkeypatch.setattr(sys, 'argv', ['visualize_attention.py', *map(str, arguments)])
    tool.main()
    assert (tmp_path / 'image_decoder.png').is_file()
    assert 'no picture of rings' in capsys.readouterr().out
    monkeypatch.setattr(sys, 'argv', ['tool', str(config), 'model.pth', 'nowhere.jpg'])
    with pytest.raises(SystemExit):
        tool.main()
    assert "'nowhere.jpg' does not exist" in capsys.readouterr().err

"""The picture of the study vqgan."""

import runpy

import numpy as np
import pytest
import torch
from PIL import Image

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model


@pytest.fixture
def tool(root):
    return runpy.run_path(str(root / 'tools/misc/reconstruction_picture.py'))


def test_a_row_for_each_attention(tool, root, shapes_root, tmp_path, monkeypatch):
    cfg = load_config(str(root / 'configs/vqgan/vit-vqgan-nano_shapes.py'))
    cfg.test_dataloader.dataset.data_root = f'{shapes_root}/imagenet'
    weights = dict(state_dict=initial_model(cfg).state_dict(), meta={})
    (tmp_path / 'weights').mkdir()
    for attention in tool['ATTENTIONS']:
        run = f'shapes_{attention}_seed0'
        torch.save(weights, tmp_path / f'weights/{run}.pth')
        config = tmp_path / f'runs/{run}-0a1b2c3d/configs/val.py'
        config.parent.mkdir(parents=True)
        cfg.dump(config)
    monkeypatch.setattr('sys.argv', ['tool', str(tmp_path), str(tmp_path / 'a.jpg')])
    tool['main']()
    with Image.open(tmp_path / 'a.jpg') as picture:
        assert picture.size == (8 * 96, 5 * 96)
        first, second, *_ = np.split(np.asarray(picture, float), 5)
    assert abs(first - second).mean() > 10  # images, and what random weights make of them


def test_images_are_drawn_as_they_are(tool):
    blue, red = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    blue[2], red[0] = 200, 100
    figure = tool['draw'](dict(input=8 * [blue], RWGKA=8 * [red]))
    shown = [axes.images[0].get_array() for axes in figure.axes]
    assert [axes.get_ylabel() for axes in figure.axes][::8] == ['input', 'RWGKA']
    assert len(shown) == 16 and np.array(shown[0])[0, 0].tolist() == [0, 0, 200]
    assert np.array(shown[15])[3, 3].tolist() == [100, 0, 0]

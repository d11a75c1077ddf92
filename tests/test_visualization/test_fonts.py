"""Class names are drawn by a font that has their characters."""

import numpy as np
import pytest
import torch
from matplotlib.font_manager import findfont, get_font
from mmengine.structures import InstanceData

from mmlinattn.visualization import predictions
from mmlinattn.visualization.predictions import draw_prediction, font_families


@pytest.fixture
def said(monkeypatch):
    texts = []
    monkeypatch.setattr(predictions, 'log_warning', texts.append)
    font_families.cache_clear()
    return texts


def characters(family):
    return {*get_font(findfont(family)).get_charmap()}


def test_a_font_that_has_the_characters(said):
    assert font_families(('bolt', 'Größe')) == ['DejaVu Sans']
    # Both fonts come with matplotlib.
    other = chr(min(characters('STIXGeneral') - characters('DejaVu Sans')))
    (family,) = font_families((other,))
    assert ord(other) in characters(family) and family != 'DejaVu Sans' and not said


def test_characters_that_no_font_has(said):
    names = ('bolt', chr(0x10FFFD))
    assert font_families(names) == font_families(names) == ['DejaVu Sans']
    (text,) = said
    assert 'no installed font has all characters of the class names bolt' in text


def test_the_picture_has_the_characters(said, monkeypatch):
    structures = pytest.importorskip('mmdet.structures', reason='the visualizer is of MMDetection')
    boxes = torch.tensor([[10.0, 40, 90, 90]])
    found = InstanceData(
        bboxes=boxes, scores=torch.ones(1), labels=torch.zeros(1, dtype=torch.long)
    )
    sample = structures.DetDataSample(pred_instances=found)
    name = chr(min(characters('STIXGeneral') - characters('DejaVu Sans')))
    image = np.zeros((100, 100, 3), np.uint8)
    drawn = draw_prediction(image, sample, [name], [(255, 0, 0)])
    monkeypatch.setattr(predictions, 'font_families', lambda names: ['DejaVu Sans'])
    assert (draw_prediction(image, sample, [name], [(255, 0, 0)]) != drawn).any()

"""Pictures of predictions beside ground truth."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from mmlinattn.visualization.predictions import (
    blend_semantic,
    comparison,
    instance_panels,
    semantic_panels,
)

PALETTE = [(0, 0, 0), (200, 0, 0), (0, 0, 200)]
IMAGE = np.full((20, 30, 3), 100, np.uint8)


def test_unlabelled_pixels_keep_their_colour():
    labels = np.array([[0, 1, 255]])
    found = blend_semantic(IMAGE[:1, :3], labels, PALETTE)
    assert found[0].tolist() == [[40, 40, 40], [160, 40, 40], [100, 100, 100]]


def test_panels_of_labels():
    truth, found = torch.zeros(1, 20, 30).long(), torch.ones(1, 20, 30).long()
    sample = BaseDataElement()
    sample.gt_sem_seg, sample.pred_sem_seg = PixelData(data=truth), PixelData(data=found)
    panels = semantic_panels(sample, IMAGE)
    assert [int(labels.max()) for _, labels in panels] == [0, 1]
    assert all(labels.shape == (20, 30) for _, labels in panels)


def test_panels_of_objects_leave_out_what_is_unsure(tmp_path):
    masks = torch.zeros(2, 20, 30, dtype=torch.bool)
    masks[0, 5:15, 5:25] = True
    boxes = torch.tensor([[5.0, 5, 25, 15], [0, 0, 9, 9]])
    found = InstanceData(labels=torch.tensor([1, 0]), bboxes=boxes, masks=masks)
    sample = BaseDataElement()
    sample.gt_instances, sample.pred_instances = found[:1], found.clone()
    sample.pred_instances.scores = torch.tensor([0.9, 0.4])
    panels = instance_panels(sample, IMAGE, first_label=1)
    for _, objects in panels:
        assert objects['labels'].tolist() == [2]
        assert objects['boxes'].tolist() == [[5, 5, 25, 15]]
        assert objects['masks'].sum() == 10 * 20
    assert panels[0][1]['scores'] is None
    assert panels[1][1]['scores'].tolist() == pytest.approx([0.9])
    path = comparison(tmp_path / 'new/a.png', [[(IMAGE,), *panels]], 'abc', 'xyz', PALETTE)
    drawn = cv2.imread(str(path)).astype(int)
    blue = (drawn[..., 0] - drawn[..., 2] > 80).any(0)
    third = drawn.shape[1] // 3
    assert not blue[:third].any() and blue[third : 2 * third].any() and blue[2 * third :].any()


def test_a_row_of_another_length():
    with pytest.raises(ValueError, match=r'rows\[1\] has 2 panels for 1 titles'):
        comparison('never.png', [[(IMAGE,)], [(IMAGE,), (IMAGE,)]], ['image'], 'xyz', PALETTE)

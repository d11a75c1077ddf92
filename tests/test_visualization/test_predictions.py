"""Pictures of predictions."""

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample

from mmlinattn.visualization.predictions import draw_prediction

PALETTE = [(0, 0, 0), (200, 0, 0), (0, 0, 200)]
IMAGE = np.full((20, 30, 3), 100, np.uint8)


def test_prediction_is_drawn_and_truth_is_not():
    truth, found = torch.zeros(1, 20, 30).long(), torch.ones(1, 20, 30).long()
    sample = SegDataSample(gt_sem_seg=PixelData(data=truth), pred_sem_seg=PixelData(data=found))
    drawn = draw_prediction(IMAGE, sample, 'xyz', PALETTE)
    assert drawn.shape == (20, 30, 3) and drawn[15, 5].tolist() == [150, 50, 50]


def test_labels_of_one_pixel():
    """MMSegmentation's code takes a torch.bool of one pixel for an index."""
    sample = SegDataSample(pred_sem_seg=PixelData(data=torch.ones(1, 1, 1).long()))
    assert draw_prediction(IMAGE[:1, :1], sample, 'xyz', PALETTE).tolist() == [[[150, 50, 50]]]


@pytest.mark.parametrize('min_score', [0.0, 0.4])
def test_objects_with_empty_masks_have_boxes(min_score):
    masks = torch.zeros(2, 20, 30, dtype=torch.bool)
    masks[1, :9, :9] = True
    boxes = torch.tensor([[5.0, 5, 25, 15], [0, 0, 9, 9]])
    scores = torch.tensor([0.5, 0.2])
    found = InstanceData(labels=torch.tensor([2, 1]), bboxes=boxes, scores=scores, masks=masks)
    sample = DetDataSample(pred_instances=found)
    drawn = draw_prediction(IMAGE, sample, 'xyz', PALETTE, min_score).astype(int)
    assert (drawn[..., 2] - drawn[..., 0]).max() > 100  # the blue box
    assert ((drawn[..., 0] - drawn[..., 2]).max() > 10) == (min_score == 0)  # the red mask
    assert sample.pred_instances.masks.any()


def test_objects_that_are_unsure_are_left_out():
    boxes = torch.tensor([[5.0, 5, 25, 15], [0, 0, 9, 9]])
    found = InstanceData(
        labels=torch.tensor([2, 1]), bboxes=boxes, scores=torch.tensor([0.5, 0.49])
    )
    sample = DetDataSample(pred_instances=found)
    drawn = draw_prediction(IMAGE, sample, 'xyz', PALETTE, min_score=0.5).astype(int)
    assert (drawn[..., 2] - drawn[..., 0]).max() > 100  # blue
    assert (drawn[..., 0] - drawn[..., 2]).max() < 10  # no red

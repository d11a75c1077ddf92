"""Which pixels a cell is of."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from mmlinattn.app.crop_transform import CropTransform, Grid, measure_crop


class Pipeline:
    """Resizes, crops, then pads a picture, in place of a predictor."""

    def __init__(self, resized, crop=(0, 0), kept=None, padded=None):
        self.resized, self.crop, self.kept, self.padded = resized, crop, kept, padded

    def batch_of(self, image):
        height, width = self.resized
        image = cv2.resize(image, (width, height))
        top, left = self.crop
        rows, columns = self.kept or (height - top, width - left)
        image = image[top : top + rows, left : left + columns]
        if self.padded:
            below, right = self.padded[0] - rows, self.padded[1] - columns
            image = cv2.copyMakeBorder(
                image, 0, below, 0, right, cv2.BORDER_CONSTANT, value=(114,) * 3
            )
        return dict(inputs=[torch.from_numpy(image).permute(2, 0, 1)])


@pytest.mark.parametrize(
    'shape, steps',
    [
        ((300, 500), Pipeline((300, 500))),
        ((300, 500), Pipeline((600, 1000), padded=(640, 1024))),
        ((480, 640), Pipeline((256, 341), crop=(16, 58), kept=(224, 224))),
        ((37, 23), Pipeline((74, 115), crop=(0, 15))),
    ],
)
def test_crop_transform_of_a_pipeline_is_measured(shape, steps):
    crop = measure_crop(steps, shape, steps.padded or steps.kept or steps.resized)
    for axis in (0, 1):  # x, y
        full, resized = shape[1 - axis], steps.resized[1 - axis]
        scale, start = full / resized, steps.crop[1 - axis]
        # OpenCV's pixels are areas: middle i + 0.5.
        wanted = scale * (np.array([0, 20]) + start + 0.5) - 0.5
        found = crop.scale[axis] * np.array([0, 20]) + crop.offset[axis]
        np.testing.assert_allclose(found, wanted, atol=0.5)


def test_the_crop_of_a_classifier():
    """MMPretrain's own steps, with pillow: the short side to 256, then 224 in the middle."""
    pytest.importorskip('mmpretrain', reason='the pipeline is that of its classifiers')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        steps = Compose(
            [
                dict(type='ResizeEdge', scale=256, edge='short', backend='pillow'),
                dict(type='CenterCrop', crop_size=224),
                dict(type='PackInputs'),
            ]
        )

    class Classifier:
        def batch_of(self, image):
            packed = steps(dict(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2]))
            return dict(inputs=[packed['inputs']])

    crop = measure_crop(Classifier(), (512, 1024), (224, 224))
    np.testing.assert_allclose(crop.scale, (2, 2), atol=0.02)
    np.testing.assert_allclose(crop.offset, (2 * 144 + 0.5, 2 * 16 + 0.5), atol=2)
    grid = crop.grid((14, 14))
    assert grid.cell(512, 256) == (7, 7) and grid.cell(300, 40) == (0, 0)
    assert grid.cell(0, 0) == (0, 0) and grid.cell(1023, 511) == (13, 13)
    painted = grid.paint(np.zeros((512, 1024, 3), np.uint8), np.ones((14, 14, 4)))
    seen = (painted == 255).all(-1)
    rows, columns = seen.any(1).nonzero()[0], seen.any(0).nonzero()[0]
    assert abs(rows[0] - 32) < 4 and abs(rows[-1] - 479) < 4
    assert abs(columns[0] - 288) < 4 and abs(columns[-1] - 735) < 4


def test_a_pipeline_that_leaves_nothing():
    class Black:
        def batch_of(self, image):
            return dict(inputs=[torch.zeros(3, 8, 8)])

    with pytest.raises(ValueError, match='leaves too little of a picture of 9 x 6 pixels'):
        measure_crop(Black(), (6, 9), (8, 8))


def test_cells_and_pixels():
    """Twice as many pixels in the input as in the picture; 8 of them a cell."""
    crop = CropTransform((0.5, 0.5), (-0.25, -0.25), (32, 64))
    grid = crop.grid((4, 8))
    assert grid.middle(0, 0) == pytest.approx((1.5, 1.5))
    columns = [grid.cell(x, 0)[1] for x in range(32)]
    assert columns == [x // 4 for x in range(32)]
    large = [crop.enlarged(3).grid((4, 8)).cell(x, 0)[1] for x in range(96)]
    assert large == [x // 12 for x in range(96)]
    # SMCA: the middle of cell i is at 8 * i of the input.
    smca = crop.grid((4, 8), stride=8)
    assert smca.middle(1, 2) == pytest.approx((0.5 * 16 - 0.25, 0.5 * 8 - 0.25))
    assert smca.cell(7.7, 3.8) == (1, 2)


def test_paint():
    colors = np.zeros((2, 3, 4))
    colors[1, 2] = (1, 0, 0, 1)
    colors[0, 0] = (0, 0, 1, 0.5)
    picture = np.full((8, 12, 3), 100, np.uint8)
    painted = Grid((2, 3), (0.25, 0.25), (-0.375, -0.375)).paint(picture, colors)
    assert painted.shape == picture.shape and painted.dtype == np.uint8
    grey = round(100 * 0.35 + 255 * 0.65)
    assert (painted[4:, 8:] == (255, 0, 0)).all()
    assert (painted[:4, :4] == (round(grey / 2), round(grey / 2), round((grey + 255) / 2))).all()
    assert (painted[:4, 4:] == round(grey)).all() and (painted[4:, :8] == grey).all()

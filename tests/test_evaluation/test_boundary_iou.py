"""Boundary IoU against distances measured pixel by pixel."""

import numpy as np
import pytest
import torch

from mmlinattn.evaluation import BoundaryIoUMetric, boundary_of

SHAPE = 24, 32  # a diagonal of 40


def near_outside(mask: np.ndarray, distance: int, ignored: np.ndarray) -> np.ndarray:
    """Return the pixels of a mask with a pixel outside, or the edge, within a distance."""
    height, width = mask.shape
    found = np.zeros_like(mask)
    for y, x in np.argwhere(mask):
        for v in range(y - distance, y + distance + 1):
            for u in range(x - distance, x + distance + 1):
                beyond = not (0 <= v < height and 0 <= u < width)
                found[y, x] |= beyond or not (mask[v, u] or ignored[v, u])
    return found


def maps(seed: int) -> np.ndarray:
    """Return a map of labels in blobs: classes 0 to 2."""
    rng = np.random.default_rng(seed)
    return np.kron(rng.integers(0, 3, (4, 4)), np.ones((6, 8), int))


def score(pairs, classes=('sky', 'road', 'car'), **options) -> dict:
    metric = BoundaryIoUMetric(**options)
    metric.dataset_meta = dict(classes=classes)
    for pred, true in pairs:
        sample = {
            key: dict(data=torch.from_numpy(np.asarray(of))[None])
            for key, of in dict(pred_sem_seg=pred, gt_sem_seg=true).items()
        }
        metric.process({}, [sample])
    return metric.evaluate(len(pairs))


@pytest.mark.parametrize('distance', [1, 2, 5])
def test_boundary_is_what_lies_near_the_outside(distance):
    rng = np.random.default_rng(distance)
    mask, ignored = maps(distance) == 1, rng.random(SHAPE) < 0.05
    mask &= ~ignored
    found = boundary_of(mask, distance, ignored)
    np.testing.assert_array_equal(found, near_outside(mask, distance, ignored))
    assert 0 < found.sum() < mask.sum() or distance > 3
    nothing = np.zeros_like(mask)
    np.testing.assert_array_equal(
        boundary_of(mask, distance), near_outside(mask, distance, nothing)
    )


def test_all_of_the_image_is_the_iou_of_each_class():
    true = maps(0)
    pred = np.roll(true, (1, 2), (0, 1))
    true[3:6, 5:12] = 255
    found = score([(pred, true)], dilation_ratio=1.0, classwise=True)
    for i, name in enumerate(('sky', 'road', 'car')):
        a, b = ((of == i) & (true != 255) for of in (pred, true))
        assert found[f'boundary/IoU_{name}'] == pytest.approx(100 * (a & b).sum() / (a | b).sum())
    mask = np.ones(SHAPE, bool)
    for distance in (11, 12, 13):  # the half of the shorter side is 12
        np.testing.assert_array_equal(
            boundary_of(mask, distance), near_outside(mask, distance, mask & False)
        )


def test_iou_of_the_boundaries_of_all_images():
    """Pixels of the same class are summed over the images, without those to ignore."""
    pairs = []
    for seed in range(3):
        true = maps(seed)
        pred = np.roll(true, (1, 2), (0, 1))
        true[seed * 3 : seed * 3 + 3, 5:12] = 255
        pairs.append((pred, true))
    found = score(pairs, dilation_ratio=0.05, classwise=True)
    wanted = []
    for i, name in enumerate(('sky', 'road', 'car')):
        both = either = 0
        for pred, true in pairs:
            ignored = true == 255
            a, b = (near_outside((of == i) & ~ignored, 2, ignored) for of in (pred, true))
            both, either = both + (a & b).sum(), either + (a | b).sum()
        wanted.append(100 * both / either)
        assert found[f'boundary/IoU_{name}'] == pytest.approx(wanted[-1])
        assert 5 < wanted[-1] < 60
    assert found['boundary/mIoU'] == pytest.approx(np.mean(wanted))


@pytest.mark.parametrize('kind', [np.uint8, np.float32, np.int64])
def test_types_of_predictions(kind):
    """Those of a single sigmoid output are floats; labels beyond the classes are outside of all."""
    true, pred = maps(0), maps(1)
    wanted = score([(pred, true)])
    found = score([(pred.astype(kind), true.astype(np.uint8))])
    assert found == wanted
    beyond, two = np.where(pred == 2, 7, pred), ('sky', 'road')
    assert score([(beyond.astype(kind), true)], two) == score([(pred, true)], two)


@pytest.mark.parametrize('shape', [(1, 5), (5, 1), (1, 1)])
def test_an_image_of_one_pixel_on_a_side(shape):
    true = np.zeros(shape, int)
    pred = true.copy()
    pred.flat[0] = 1
    expected = 100 * (true.size - 1) / true.size / 2  # of sky and road
    assert score([(pred, true)])['boundary/mIoU'] == pytest.approx(expected)


def test_an_outline_counts_more_than_an_area():
    """A square of 20 pixels, one pixel too small on all sides, at a distance of one pixel."""
    true, pred = np.zeros(SHAPE, int), np.zeros(SHAPE, int)
    true[2:22, 6:26], pred[3:21, 7:25] = 1, 1
    found = score([(pred, true)], dilation_ratio=0.025, classwise=True)
    assert found['boundary/IoU_road'] == 0
    assert score([(true, true)])['boundary/mIoU'] == 100


def test_classes_that_occur_nowhere_do_not_count():
    label = np.zeros(SHAPE, int)
    found = score([(label, label)], classwise=True)
    assert found['boundary/mIoU'] == 100 and np.isnan(found['boundary/IoU_car'])
    assert np.isnan(score([(label, np.full(SHAPE, 255))])['boundary/mIoU'])


@pytest.mark.parametrize('ratio', [0, 1.1, -0.1, float('nan'), '0.02'])
def test_bad_options(ratio):
    with pytest.raises(
        ValueError, match=f'dilation_ratio must be above 0 and at most 1, got {ratio!r}'
    ):
        BoundaryIoUMetric(dilation_ratio=ratio)
    with pytest.raises(ValueError, match="ignore_index must be an integer, got '255'"):
        BoundaryIoUMetric(ignore_index='255')

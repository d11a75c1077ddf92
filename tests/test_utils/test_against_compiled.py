"""The stand-in against mmcv's compiled operators, where these are installed."""

import pytest
import torch

from mmlinattn.utils import mmcv_ops as ext

from . import cases

EMPTY = torch.zeros(0)
SETS = 1000


@pytest.mark.parametrize('offset', [0, 1])
def test_nms(compiled, offset):
    for seed in range(SETS):
        boxes, scores, _, threshold = cases.boxes_with_ties(seed)
        expected = compiled.nms(boxes, scores, iou_threshold=threshold, offset=offset)
        got = ext.nms(boxes, scores, iou_threshold=threshold, offset=offset)
        assert torch.equal(got, expected), seed


@pytest.mark.parametrize('split', [10000, 50])
def test_batched_nms(compiled, mmcv_runs_on, split):
    from mmcv.ops import batched_nms

    for seed in range(SETS):
        boxes, scores, classes, threshold = cases.boxes_with_ties(seed)
        if not len(boxes):
            continue
        both = []
        for extension in (compiled, ext):
            mmcv_runs_on(extension)
            config = dict(type='nms', iou_threshold=threshold, split_thr=split, max_num=40)
            both.append(batched_nms(boxes, scores, classes, config))
        assert all(torch.equal(*pair) for pair in zip(*both)), seed


@pytest.mark.parametrize('aligned', [False, True])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_roi_align_has_equal_bits(compiled, aligned, sampling_ratio, dtype):
    for seed in range(20):
        x, rois = cases.rois_case(seed, dtype)
        upstream = torch.randn(7, 3, 4, 3, dtype=dtype)
        both = []
        for extension in (compiled, ext):
            out, grad = torch.zeros_like(upstream), torch.zeros_like(x)
            empty = EMPTY.to(dtype)
            extension.roi_align_forward(
                x, rois, out, empty, empty, aligned_height=4, aligned_width=3, spatial_scale=0.25,
                sampling_ratio=sampling_ratio, pool_mode=1, aligned=aligned,
            )  # fmt: skip
            extension.roi_align_backward(
                upstream, rois, empty, empty, grad, aligned_height=4, aligned_width=3,
                spatial_scale=0.25, sampling_ratio=sampling_ratio, pool_mode=1, aligned=aligned,
            )  # fmt: skip
            both.append((out, grad))
        assert all(torch.equal(*pair) for pair in zip(*both)), seed


def test_focal_loss_against_mmdetection(compiled, on_stand_in):
    """mmcv compiles it for CUDA alone; on a GPU the compiled one is asked as well."""
    if not torch.cuda.is_available():
        pytest.skip(
            'mmcv has no focal loss for the CPU: test_mmcv_ext compares with the definition'
        )
    x, target = torch.randn(64, 9, device='cuda'), torch.randint(0, 10, (64,), device='cuda')
    empty = x.new_zeros(0)
    for name in ('forward', 'backward'):
        expected, got = torch.zeros_like(x), torch.zeros_like(x)
        getattr(compiled, f'sigmoid_focal_loss_{name}')(x, target, empty, expected, 2.0, 0.25)
        getattr(ext, f'sigmoid_focal_loss_{name}')(x, target, empty, got, 2.0, 0.25)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_it_has_every_name_of_the_compiled_module(compiled):
    for name in ext.OPERATORS:
        assert name in dir(compiled)
    assert all(hasattr(ext, name) for name in dir(compiled) if not name.startswith('_'))

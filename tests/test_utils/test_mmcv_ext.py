"""Each operator of the stand-in against its definition; no compiled mmcv is needed."""

import importlib.util
import sys

import pytest
import torch

from mmlinattn.utils import mmcv_ops as ext

from . import cases, definitions

EMPTY = torch.zeros(0)


def pooled(x, rois, ratio=0, aligned=True):
    """RoIAlign of 4 x 3 bins, written over NaN."""
    out = torch.full((len(rois), 3, 4, 3), torch.nan, dtype=x.dtype)
    ext.roi_align_forward(x, rois, out, EMPTY, EMPTY, 4, 3, 0.25, ratio, 1, aligned)
    return out


def pooled_grad(upstream, rois, x, ratio=0, aligned=True):
    grad = torch.full_like(x, torch.nan, dtype=upstream.dtype)
    ext.roi_align_backward(upstream, rois, EMPTY, EMPTY, grad, 4, 3, 0.25, ratio, 1, aligned)
    return grad


def focal(x, target, weight=EMPTY, gamma=2.0):
    """Loss and gradient, written over NaN."""
    out, grad = (torch.full_like(x, torch.nan) for _ in range(2))
    ext.sigmoid_focal_loss_forward(x, target, weight, out, gamma, 0.25)
    ext.sigmoid_focal_loss_backward(x, target, weight, grad, gamma, 0.25)
    return out, grad


def test_nms():
    for seed in range(100):
        boxes, scores, _, threshold = cases.boxes_with_ties(seed)
        kept = ext.nms(boxes, scores, iou_threshold=threshold, offset=0)
        assert kept.dtype == torch.int64
        assert kept.tolist() == definitions.nms(boxes, scores, threshold), seed
    with pytest.raises(NotImplementedError, match='^nms with offset=1 needs compiled mmcv'):
        ext.nms(boxes, scores, threshold, 1)


def test_an_iou_of_just_the_threshold_stays():
    boxes = torch.tensor([[0, 0, 10, 1], [0, 0, 6, 1.0]])  # 0.6 in float32 is above 0.6
    assert len(ext.nms(boxes, torch.tensor([0.9, 0.8]), 0.6, 0)) == 2


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_nms_in_half_types(dtype):
    boxes, scores, _, threshold = cases.boxes_with_ties(1)
    expected = ext.nms(boxes, scores, threshold, 0)
    assert torch.equal(ext.nms(boxes.to(dtype), scores, threshold, 0), expected)
    assert torch.equal(
        ext.nms(boxes, scores.to(dtype), threshold, 0),
        ext.nms(boxes, scores.to(dtype).float(), threshold, 0),
    )


@pytest.mark.parametrize('aligned', [False, True])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_roi_align(aligned, sampling_ratio, dtype):
    for seed in range(5):
        x, rois = cases.rois_case(seed, dtype)
        wide = x.double().requires_grad_()
        expected = definitions.roi_align(wide, rois.double(), 4, 3, 0.25, sampling_ratio, aligned)
        upstream = torch.randn_like(expected)
        expected.backward(upstream)
        out = pooled(x, rois, sampling_ratio, aligned)
        grad = pooled_grad(upstream.to(dtype), rois, x, sampling_ratio, aligned)
        near = dict(rtol=1e-5, atol=1e-5) if dtype is torch.float32 else dict(rtol=0, atol=1e-12)
        torch.testing.assert_close(out, expected.to(dtype), **near)
        torch.testing.assert_close(grad, wide.grad.to(dtype), **near)


def test_roi_align_takes_any_memory_layout():
    x, rois = cases.rois_case(0)
    assert torch.equal(
        pooled(x, rois), pooled(x.contiguous(memory_format=torch.channels_last), rois)
    )


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_roi_align_in_half_types(dtype):
    x, rois = (tensor.to(dtype) for tensor in cases.rois_case(0))
    out = pooled(x, rois)
    assert torch.equal(out, pooled(x.float(), rois.float()).to(dtype))
    wide = pooled_grad(out.float(), rois.float(), x)
    assert torch.equal(pooled_grad(out, rois, x), wide.to(dtype))


def test_roi_align_trains_deterministically():
    """Torchvision's CUDA kernel raises an error then; on the CPU nothing changes."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    x, rois = (tensor.to(device) for tensor in cases.rois_case(0))
    upstream, grads = torch.randn(7, 3, 4, 3, device=device), []
    try:
        for deterministic in (False, True, True):
            torch.use_deterministic_algorithms(deterministic)
            grads.append(pooled_grad(upstream, rois, x))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(grads[0], grads[1])
    assert torch.equal(grads[1], grads[2])


def test_roi_align_of_no_regions():
    x, rois = cases.rois_case(0)
    assert not pooled_grad(pooled(x, rois[:0]), rois[:0], x).any()


def test_roi_align_of_maxima_is_refused(on_stand_in):
    from mmcv.ops import RoIAlign

    x, rois = cases.rois_case(0)
    with pytest.raises(NotImplementedError, match=r"pool_mode='max'.* needs compiled mmcv"):
        RoIAlign((4, 3), 0.25, pool_mode='max')(x, rois)


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('gamma', [0.0, 1.5, 2.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_sigmoid_focal_loss(weighted, gamma, dtype):
    x = (torch.randn(12, 4, dtype=dtype) * 3).double().requires_grad_()
    target = torch.randint(0, 5, (12,))  # 4 is background
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    expected = definitions.focal_loss(x, target, weight, gamma, 0.25)
    expected.sum().backward()
    given = EMPTY.to(dtype) if weight is None else weight.to(dtype)
    out, grad = focal(x.detach().to(dtype), target, given, gamma)
    near = 1e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(out.double(), expected.detach(), rtol=near, atol=near)
    torch.testing.assert_close(grad.double(), x.grad, rtol=near, atol=near)


def test_sigmoid_focal_loss_of_sure_logits_is_finite():
    x = torch.tensor([[-200.0, 200.0, -30.0, 30.0]])
    for target in (0, 1, 4):
        out, grad = focal(x, torch.tensor([target]))
        assert out.isfinite().all() and grad.isfinite().all()
    assert out[0, 1] == 150  # 0.75 * 200: not clipped at the smallest float32


def test_sigmoid_focal_loss_in_half_types():
    x, target = torch.randn(6, 4), torch.randint(0, 5, (6,))
    for dtype in (torch.float16, torch.bfloat16):
        for half, wide in zip(focal(x.to(dtype), target), focal(x.to(dtype).float(), target)):
            assert torch.equal(half, wide.to(dtype))


def test_mmdetection_focal_loss_on_it(on_stand_in):
    """MMDetection takes the operator on a GPU and Python on a CPU: both say the same."""
    losses = pytest.importorskip('mmdet.models.losses.focal_loss')
    results = []
    for function in (losses.sigmoid_focal_loss, losses.py_sigmoid_focal_loss):
        torch.manual_seed(1)
        x, weight = torch.randn(20, 4, requires_grad=True), torch.rand(20)
        target = torch.randint(0, 5, (20,))
        if function is losses.py_sigmoid_focal_loss:
            target = torch.nn.functional.one_hot(target, 5)[:, :4]
        loss = function(x, target, weight, avg_factor=3.0)
        loss.backward()
        results.append((loss.detach(), x.grad))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_ms_deform_attn(on_stand_in, dtype):
    from mmcv.ops import multi_scale_deform_attn as mmcv

    results = []
    value, shapes, starts, locations, weights = cases.attention_case(dtype)
    upstream = torch.randn(2, 7, 12, dtype=dtype)
    for compiled in (False, True):
        leaves = [x.clone().requires_grad_() for x in (value, locations, weights)]
        if compiled:
            function = mmcv.MultiScaleDeformableAttnFunction.apply
            out = function(leaves[0], shapes, starts, *leaves[1:], 64)
        else:
            out = mmcv.multi_scale_deformable_attn_pytorch(leaves[0], shapes, *leaves[1:])
        out.backward(upstream)
        results.append([out.detach()] + [x.grad for x in leaves])
    near = 2e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(*results, rtol=near, atol=near)


def test_ms_deform_attn_in_half_types():
    value, shapes, starts, locations, weights = cases.attention_case()
    for dtype in (torch.float16, torch.bfloat16):
        half = [x.to(dtype) for x in (value, locations, weights)]
        out = ext.ms_deform_attn_forward(half[0], shapes, starts, *half[1:], 64)
        assert out.dtype == dtype
        wide = [x.float() for x in half]
        expected = ext.ms_deform_attn_forward(wide[0], shapes, starts, *wide[1:], 64)
        assert torch.equal(out, expected.to(dtype))


def test_an_operator_that_is_missing_says_so():
    message = r'^carafe_forward needs compiled mmcv.*nms, roi_align.*mim install onedl-mmcv'
    with pytest.raises(NotImplementedError, match=message):
        ext.carafe_forward(1, masks=2)
    assert not hasattr(ext, '__wrapped__'), 'tools that look modules over ask for such names'
    with pytest.raises(ImportError):
        exec('from mmlinattn.utils.mmcv_ops import _no_such_name')


@pytest.fixture
def load():
    """Load the file as ``import mmcv._ext`` does where setup.py has installed it."""

    def loaded():
        spec = importlib.util.spec_from_file_location('mmcv._ext', ext.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded


def test_it_loads_without_this_package_and_mmcv(load, monkeypatch):
    """MMDetection may import mmcv.ops before or after a config imports this package."""
    for name in ('mmlinattn', 'mmcv', 'mmengine'):
        monkeypatch.setitem(sys.modules, name, None)
    assert load().__spec__.name == 'mmcv._ext'


def test_no_torchvision_says_so(load, monkeypatch):
    monkeypatch.setitem(sys.modules, 'torchvision', None)
    with pytest.raises(ImportError, match='torchvision.* cannot be imported next to torch'):
        load()


def test_mmcv_reports_the_stand_in(on_stand_in):
    from mmcv.utils.env import collect_env

    assert collect_env()['MMCV Compiler'].startswith('none: stand-in of mmlinattn')


@pytest.mark.skipif(not torch.cuda.is_available(), reason='compares CUDA with the CPU')
def test_a_gpu_gives_the_same(mmcv_runs_on):
    mmcv_runs_on(ext)
    from mmcv import ops

    x, rois = cases.rois_case(0)
    value, shapes, starts, locations, weights = cases.attention_case()
    logits, target = torch.randn(20, 4), torch.randint(0, 5, (20,))
    boxes, scores = torch.rand(300, 4) * 50, torch.rand(300)
    boxes[:, 2:] += boxes[:, :2]
    attention = ops.multi_scale_deform_attn.MultiScaleDeformableAttnFunction.apply
    results = []
    for device in ('cpu', 'cuda'):

        def leaf(tensor, device=device):
            return tensor.detach().to(device).requires_grad_()

        leaves = [leaf(tensor) for tensor in (x, value, locations, weights, logits)]
        outputs = [
            ops.roi_align(leaves[0], rois.to(device), (4, 3), 0.25, 0, 'avg', True),
            attention(leaves[1], shapes.to(device), starts.to(device), *leaves[2:4], 64),
            ops.sigmoid_focal_loss(leaves[4], target.to(device), 2.0, 0.25, None, 'none'),
        ]
        sum((output**2).sum() for output in outputs).backward()
        kept = ops.nms(boxes.to(device), scores.to(device), 0.5)[1]
        results.append([y.detach().cpu() for y in [*outputs, kept, *(z.grad for z in leaves)]])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)

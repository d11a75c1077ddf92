"""Files give what the model gives, at other sizes and in other numbers, on every runtime."""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from torch import nn

from mmlinattn.deployment import Export, ExportSettings, FileMetadata, exporter
from mmlinattn.deployment.capture import captured_size, strides_of
from mmlinattn.deployment.compare import difference, match
from mmlinattn.deployment.deployable import NotDeployable, deployable
from mmlinattn.deployment.export_rewrites import adaptive_mean
from mmlinattn.deployment.exported_file import ExportedFile, FileError
from mmlinattn.deployment.exported_model import ExportedModel
from mmlinattn.deployment.file_metadata import METADATA
from mmlinattn.deployment.formats import OPSET, FormatError, write_onnx
from mmlinattn.models.layers import SoftmaxAttention, map_to_tokens, tokens_to_map
from tests.sizes import LONG, some

from .conftest import captures, padded

pytestmark = pytest.mark.slow

onnx = pytest.importorskip('onnx', reason='it comes with the extra "export"')
pytest.importorskip('onnxscript', reason='it comes with the extra "export"')
pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')

STATIC = ExportSettings((64, 64), static=True)
ANY = ExportSettings((96, 64), dynamic_batch=True)
ALL = [
    'ravlt-nano-retinanet', 'ravlt-nano-mask-rcnn', 'ravlt-cascade', 'ravlt-semantic-fpn',
    'ravlt-upernet', 'segformer', 'segformer-rwgka', 'segformer-rwgkp', 'segformer-rala',
    'segformer-slinear', 'cvt-semantic-fpn', 'swin-upernet', 'smca', 'smca-la', 'smca-ripple',
    'ravlt-nano-cls', 'mit-rwgka-cls', 'vit-cls', 'convit-cls', 'vit-enhanced-cls',
]  # fmt: skip


def operators(path: Path) -> Counter:
    """Operators of an ONNX file, which has no functions and no inner graphs."""
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [('', OPSET)]
    assert not model.functions
    return Counter(node.op_type for node in model.graph.node)


def tensorrt() -> set:
    lines = (Path(__file__).parent / 'tensorrt-10.0.txt').read_text().splitlines()
    return {line for line in lines if not line.startswith('#')}


def check(file: ExportedFile, model, image, sizes) -> None:
    """At each size and number of images; labels of pixels may differ where logits are equal.

    Detections in a padded image are compared with those of the framework.
    """
    for number, *shape in sizes:
        images = F.interpolate(image, tuple(shape), mode='bilinear')
        images = torch.cat([images, images.flip(-1), images.flip(-2)])[:number]
        with torch.no_grad():
            expected = model(images)
        found = file(images)
        if 'count' not in expected:
            assert difference(found, expected) < 1e-3, (number, shape)
            continue
        check_detections(match(found, expected), 1e-3)
    if 'count' in expected:
        size = torch.tensor([[50, 44]])
        image = padded(model, image, *size[0])
        with torch.no_grad():
            expected = model.framework_prediction(image, size)
        found = file(image, size)
        for wrong in ([[50, 44]], size[0], size.int(), size * 99, size - 50):
            with pytest.raises(FileError, match=r'takes size as int64 \(B, 2\), .* got'):
                file(image, wrong)
        # The backbone of SMCA sees the border.
        smca = type(model).__name__ == 'DeployableSMCA'
        check_detections(match(found, expected) + match(expected, found), 0.02 if smca else 1e-3)


def check_detections(rows: list, least: float) -> None:
    # Rounding decides where an IoU is just the threshold.
    assert len(rows) > 4 and sum(row < least for row in rows) >= 0.9 * len(rows), rows


def plain(cfg) -> None:
    """A small ResNet in place of the backbone, which takes most of an export's time."""
    first = 4 - len(cfg.model.neck.in_channels)
    cfg.model.backbone = dict(
        type='ResNet', depth=18, base_channels=8, out_indices=range(first, 4), norm_eval=True
    )
    cfg.model.neck.in_channels = [8, 16, 32, 64][first:]


@captures
@pytest.mark.long
@pytest.mark.parametrize('family', some(['smca-la', 'ravlt-semantic-fpn']))
def test_a_file_of_one_size(make, export, root, family):
    pytest.importorskip('mmdet' if 'smca' in family else 'mmseg', reason='it is of that framework')
    case = make(family)
    model, file = export(case, STATIC)
    check(file, model, case.image, [(1, 64, 64)])
    used = operators(file.path)
    assert used.keys() <= tensorrt() and 'Einsum' not in used
    assert used['LayerNormalization'] > 4
    graph = onnx.load(file.path).graph  # quantizers replace weights, whose shapes they would find
    assert not {value.name for value in graph.value_info} & {w.name for w in graph.initializer}
    with pytest.raises(ValueError, match='takes 64x64 alone, got 64x96'):
        file(torch.rand(1, 3, 64, 96))
    if 'fpn' in family:
        picture = np.ascontiguousarray(case.image[0, :, :47, :60].permute(1, 2, 0).byte())
        labels = run_onnx(root).OnnxModel(file.path).segment(picture, (47, 60))
        expected = predict(file, case, picture).pred_sem_seg.data[0].numpy()
        assert labels.shape == (47, 60) and len(np.unique(labels)) > 1
        np.testing.assert_array_equal(labels, expected)


def test_the_least_side_and_the_padding_of_a_file(make, monkeypatch):
    pytest.importorskip('mmseg', reason='it is a segmentor')
    case = make('ravlt-semantic-fpn', lambda cfg: cfg.model.data_preprocessor.update(pad_val=2))
    monkeypatch.setattr(exporter, 'capture', lambda *_: None)
    model = deployable(case.model, case.cfg)
    for static, least in ((True, 32), (False, 64)):
        settings = ExportSettings((least, least), static)
        about = Export(model, ['a', 'b'], settings, case.image).metadata
        assert about.least == least
    mean, std = (case.cfg.model.data_preprocessor[name] for name in ('mean', 'std'))
    assert about.padding == pytest.approx([m + 2 * s for m, s in zip(mean, std)])
    pixels = torch.tensor(about.padding).view(1, 3, 1, 1)
    assert model.normalised(pixels).flatten().tolist() == pytest.approx([2, 2, 2], abs=1e-5)


@captures
@pytest.mark.long
@pytest.mark.parametrize('family', some(['ravlt-nano-mask-rcnn', 'ravlt-nano-retinanet'], every=2))
def test_anchors_and_boxes_at_any_size(make, export, root, family):
    """Asked for at a size where the coarsest maps have one cell, run where they have more."""
    pytest.importorskip('mmdet', reason='detectors are those of MMDetection')
    case = make(family, plain)
    model, file = export(case, ANY)
    check(file, model, case.image, [(1, 64, 64), (3, 96, 160), (2, 320, 64)])
    used = operators(file.path)
    assert used.keys() <= tensorrt() and 'Einsum' not in used
    assert used['NonMaxSuppression'] == (2 if 'rcnn' in family else 1)
    assert used['RoiAlign'] == (6 if 'rcnn' in family else 0)
    with pytest.raises(ValueError, match='takes multiples of 32 from 64 on, got 80x64'):
        file(torch.rand(1, 3, 80, 64))
    if 'rcnn' in family:
        check_copy(file, case, root)


def run_onnx(root: Path):
    """The module that users copy, which needs neither torch nor this package."""
    path = root / 'demo' / 'run_onnx.py'
    imports = re.findall(r'^(?:import|from) (\w+)', path.read_text(), re.M)
    assert imports == ['json', 'cv2', 'numpy', 'onnxruntime']
    spec = importlib.util.spec_from_file_location('run_onnx', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_module_refuses(root):
    cls = run_onnx(root).OnnxModel
    model, picture = cls.__new__(cls), np.zeros((47, 60, 3), np.uint8)
    model.about = dict(task='segmentation', stride=32, least=64, dynamic=False, shape=[64, 64])
    for call, line in (
        (lambda: model.detect(None), 'the file is of segmentation, not of detection'),
        (lambda: model.segment(None), 'there is no picture, or its file cannot be read'),
        (lambda: model.segment(picture[..., 0]), r'take cv2.imread\(path\): got uint8 .47, 60.'),
        (lambda: model.segment(picture / 255), 'take cv2.imread.*: got float64 .47, 60, 3.'),
        (lambda: model.segment(picture[:0]), 'take cv2.imread.*: got uint8 .0, 60, 3.'),
        (lambda: model.segment(picture, (470, 600)), r'\(470, 600\) is above \[64, 64\]'),
    ):
        with pytest.raises(ValueError, match=line):
            call()


def predict(file: ExportedFile, case, picture: np.ndarray, *steps: dict):
    """What the framework predicts with the file in a picture, after these steps."""
    cv2.imwrite(str(file.path.parent / 'picture.png'), picture)
    pack = 'PackSegInputs' if case.cfg.default_scope == 'mmseg' else 'PackDetInputs'
    keys = ('img_path', 'ori_shape', 'img_shape', 'scale_factor', 'pad_shape', 'flip')
    data = Compose([dict(type='LoadImageFromFile'), *steps, dict(type=pack, meta_keys=keys)])(
        dict(img_path=str(file.path.parent / 'picture.png'), img_id=0)
    )
    preprocessor = case.cfg.get('data_preprocessor')
    model = ExportedModel(str(file.path), case.cfg.model, case.cfg.default_scope, preprocessor)
    (sample,) = model.test_step(pseudo_collate([data]))
    return sample


def check_copy(file: ExportedFile, case, root: Path) -> None:
    """The module resizes, runs the file and pastes masks as MMDetection does."""
    module = run_onnx(root)
    picture = cv2.resize(np.ascontiguousarray(case.image[0].permute(1, 2, 0).byte()), (150, 101))
    boxes, scores, classes, masks = module.OnnxModel(file.path).detect(picture, (90, 130))
    resize = dict(type='Resize', scale=(130, 90), keep_ratio=True)
    sample = predict(file, case, picture, resize)
    found = sample.pred_instances.numpy()
    assert len(boxes) == len(found.bboxes) > 4
    np.testing.assert_allclose(boxes, found.bboxes, atol=1e-3)
    np.testing.assert_allclose(scores, found.scores, atol=1e-5)
    assert classes == [file.metadata.classes[label] for label in found.labels]
    pixels = np.stack(masks)
    assert pixels.shape == found.masks.shape == (len(boxes), 101, 150)
    # cv2 interpolates at steps of 1/32: pixels at the threshold may differ.
    assert (pixels != found.masks).mean() < 2e-3
    # Masks with an edge, in boxes of any size.
    paste_mask = pytest.importorskip('mmdet.models.roi_heads.mask_heads.fcn_mask_head')
    edges = F.interpolate(torch.rand(3, 1, 5, 5), 28, mode='bicubic')
    places = torch.tensor(
        [[3.2, 7.9, 90.1, 80.0], [100.0, 2.5, 149.0, 31.7], [40.0, 40.0, 52.5, 47.0]]
    )
    expected, _ = paste_mask._do_paste_mask(edges, places, 101, 150, skip_empty=False)
    for mask, box, of in zip(edges[:, 0].numpy(), places.numpy(), expected.numpy()):
        differ = module.paste(mask, box, 101, 150) != (of >= 0.5)
        assert differ.sum() <= 0.02 * (of >= 0.5).sum()


def test_where_a_model_of_any_size_is_captured():
    """At two cells a side of all maps and sides that differ; a file of one size where asked."""
    assert captured_size((64, 64), 128, dynamic=True) == (256, 384)
    assert captured_size((512, 320), 128, dynamic=True) == (512, 320)
    assert captured_size((64, 64), 128, dynamic=False) == (64, 64)


@pytest.mark.parametrize('cells', [1, 2, (3, None), (1, 2)])
def test_adaptive_pooling_by_a_function_is_captured_for_any_size(cells):
    class Pool(nn.Module):
        def forward(self, x):
            return F.adaptive_avg_pool2d(x, cells)

    rows, columns = torch.export.Dim('rows', min=4), torch.export.Dim('columns', min=4)
    with patch.object(F, 'adaptive_avg_pool2d', adaptive_mean):
        shapes = dict(x={2: rows, 3: columns})
        program = torch.export.export(Pool(), (torch.randn(2, 3, 6, 8),), dynamic_shapes=shapes)
    for size in ((6, 8), (7, 11), (5, 4), (13, 6)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(program.module()(x), Pool()(x))


@captures
def test_an_operator_that_onnx_lacks(tmp_path):
    class Largest(nn.Module):
        def forward(self, image):
            return dict(a=F.adaptive_max_pool2d(image, 3))

    program = torch.export.export(Largest(), (torch.rand(1, 3, 8, 8),))
    with pytest.raises(FormatError, match='--format onnx: .*adaptive_max_pool2d.*; give --format'):
        write_onnx(program, SimpleNamespace(outputs=('a',)), tmp_path / 'a.onnx')


def test_a_file_that_cannot_be_run_does_not_stay(make, tmp_path, monkeypatch):
    def fails(*args):
        raise FileError('a.onnx cannot be run')

    case = make('segformer')
    image = F.interpolate(case.image, (64, 64))
    written = Export(deployable(case.model, case.cfg), (), STATIC, image)
    (tmp_path / 'a.onnx').write_text('older')
    monkeypatch.setattr(exporter, 'difference', fails)
    with pytest.raises(FileError, match='cannot be run'):
        written.write('onnx', tmp_path / 'a.onnx')
    assert [path.read_text() for path in tmp_path.iterdir()] == ['older']


def test_the_stride_counts_pooling():
    model = nn.Module()
    model.backbone = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(2))
    model.extract_feat = model.backbone
    assert strides_of(model) == (8, 8)


class NamesTheShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.attn = nn.Conv2d(3, 8, 4, 4), SoftmaxAttention(8, 2)

    def forward(self, image):
        maps = self.conv(image)
        hw_shape = tuple(maps.shape[2:])
        return [tokens_to_map(self.attn(map_to_tokens(maps), hw_shape=hw_shape), hw_shape)]


def test_the_stride_of_a_backbone_of_the_users():
    model = nn.Module()
    model.backbone = model.extract_feat = NamesTheShape()
    assert strides_of(model) == (4, 4)
    model.backbone.conv.stride = 1
    with pytest.raises(NotDeployable, match='the stride of NamesTheShape cannot be found'):
        strides_of(model)


@pytest.mark.parametrize('kind, strides', [('Swin', (4, 32)), ('CvT', (16, 32))])
def test_strides_of_merged_patches_and_attentions(kind, strides):
    """Swin merges patches without a convolution; CvT's attention has one that the map has not."""
    model = nn.Module()
    model.backbone = MODELS.build(dict(type=kind)).eval()
    model.extract_feat = lambda image: [out.mean((2, 3)) for out in model.backbone(image)]
    assert strides_of(model) == strides


@pytest.mark.parametrize(
    'patch, stage, stride', [(14, 1, 14), (14, 2, 28), (20, 1, 20), (6, 4, 24)]
)
def test_the_stride_of_patches_that_do_not_fill_a_usual_image(patch, stage, stride):
    """The backbone pads to whole patches, so that sides are rounded up."""
    model = nn.Module()
    pad = AdaptivePadding(patch, patch, padding='corner')
    model.backbone = nn.Sequential(
        pad, nn.Conv2d(3, 4, patch, patch), nn.Conv2d(4, 4, stage, [stage] * 2)
    )
    model.extract_feat = lambda image: [F.max_pool2d(model.backbone(image), 2)]
    assert strides_of(model) == (stride, 2 * stride)


@captures
@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='twenty exports of any size take minutes: make test-long')
@pytest.mark.parametrize('family', ALL)
def test_every_family_at_any_size(make, export, family):
    case = make(family)
    model, file = export(case, ANY)
    check(file, model, case.image, [(1, 64, 64), (3, 96, 160), (2, 128, 64)])
    used = operators(file.path)
    assert used.keys() <= tensorrt() and 'Einsum' not in used


def test_a_file_that_is_absent(tmp_path):
    with pytest.raises(FileNotFoundError, match='absent.onnx does not exist'):
        ExportedFile(tmp_path / 'absent.onnx')


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / 'other.onnx'
    value = onnx.helper.make_tensor_value_info('image', onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node('Identity', ['image'], ['out'])
    out = onnx.helper.make_tensor_value_info('out', onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], 'g', [value], [out])
    opset = onnx.helper.make_opsetid('', OPSET)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    with pytest.raises(FileError, match='does not say what it is'):
        ExportedFile(path)


@captures
def test_the_program_of_torch_export(make, tmp_path):
    """It runs without this package for a classifier, and carries the description."""
    pytest.importorskip('mmpretrain', reason='it is a classifier of MMPretrain')
    case = make('ravlt-nano-cls')
    model = deployable(case.model, case.cfg)
    exported = Export(model, ['a', 'b'], STATIC, case.image)
    written = exported.write('pt2', tmp_path / 'model.pt2')
    assert written.errors[64, 64] < 1e-5
    extra = {METADATA: ''}
    program = torch.export.load(tmp_path / 'model.pt2', extra_files=extra)
    assert FileMetadata.from_json(extra[METADATA]) == exported.metadata
    with torch.no_grad():
        torch.testing.assert_close(program.module()(case.image), exported.expected[0])


@captures
def test_the_least_side_of_a_program(make, tmp_path):
    """Its assertions refuse a side of 1 of the coarser maps of a neck, which ONNX files take."""
    pytest.importorskip('mmdet', reason='it is a detector')
    case = make('ravlt-nano-retinanet', plain)
    model = deployable(case.model, case.cfg)
    formats = ('onnx', 'pt2')
    with pytest.raises(ValueError, match='--shape 96 64 is below 96x96, .* --format pt2 and dynam'):
        Export(model, ['a', 'b'], ANY, case.image, formats)
    exported = Export(model, ['a', 'b'], ANY._replace(shape=(96, 128)), case.image, formats)
    assert exported.metadata.least == 64  # of the ONNX file
    exported.write('pt2', tmp_path / 'model.pt2')
    extra = {METADATA: ''}
    run = torch.export.load(tmp_path / 'model.pt2', extra_files=extra).module()
    assert FileMetadata.from_json(extra[METADATA]).least == 96
    image, size = F.interpolate(case.image, (96, 96)), torch.tensor([[96, 96]])
    with torch.no_grad():
        check_detections(match(run(image, size), model(image, size)), 1e-3)

"""Exported forms predict what the frameworks predict, in plain torch."""

from statistics import median

import pytest
import torch
from mmengine.registry import MODELS

from mmlinattn.deployment import Export, ExportSettings
from mmlinattn.deployment.compare import match
from mmlinattn.deployment.deployable import NotDeployable, deployable
from mmlinattn.deployment.nms import suppress
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model
from tests.families import shrunk

from .conftest import captures, padded

pytest.importorskip('mmdet', reason='detectors are those of MMDetection')

DETECTORS = [
    'ravlt-nano-retinanet', 'ravlt-nano-mask-rcnn', 'ravlt-cascade', 'smca', 'smca-la',
    'rtmdet-nano', 'vitdet-nano',
]  # fmt: skip


def lower_threshold(cfg):
    """Without training few scores pass that of the configs."""
    for part in (cfg.model.test_cfg, cfg.model.test_cfg.get('rcnn', {})):
        if 'score_thr' in part:
            part['score_thr'] = 0.01


SIDES = (64, 64), (50, 44)  # without and with padding to a multiple of 32


@pytest.mark.parametrize('size', SIDES, ids=str)
@pytest.mark.parametrize('family', DETECTORS)
def test_detections_are_those_of_the_framework(make, family, size):
    case = make(family, lower_threshold)
    case.sample.set_metainfo(dict(img_shape=size, ori_shape=size))
    pixels = case.image[0, :, : size[0], : size[1]].flip(0)
    with torch.no_grad():
        (sample,) = case.model.test_step(dict(inputs=[pixels], data_samples=[case.sample]))
        model, expected = deployable(case.model, case.cfg), sample.pred_instances
        found = model(padded(model, case.image, *size), torch.tensor([size]))
    if 'smca' in family and size != (64, 64):  # its backbone sees the border
        framework = model.framework_prediction(
            padded(model, case.image, *size), torch.tensor([size])
        )
        rows = match(found, framework) + match(framework, found)
        assert len(rows) > 100 and median(rows) < 0.02
        return
    count = len(expected)
    assert count > 4 and expected.scores.unique().numel() > 0.9 * count
    assert found['count'].tolist() == [count]
    torch.testing.assert_close(found['scores'][0, :count], expected.scores)
    torch.testing.assert_close(found['boxes'][0, :count], expected.bboxes, rtol=1e-4, atol=1e-3)
    assert torch.equal(found['labels'][0, :count], expected.labels)
    # What is filled up is recognised.
    assert (found['labels'][0, count:] == -1).all() and not found['boxes'][0, count:].any()


def with_part(place, **options):
    """Return a change of a config: a part of its model, '' for the model, gets these options."""

    def change(cfg):
        lower_threshold(cfg)
        for name, value in options.items():
            (cfg.model[place] if place else cfg.model)[name] = value

    return change


@pytest.mark.parametrize(
    'family, part, options',
    [
        ('ravlt-nano-retinanet', 'bbox_head', dict(type='ATSSHead')),
        ('ravlt-nano-mask-rcnn', 'roi_head', dict(type='PISARoIHead')),
    ],
)
def test_detections_of_other_heads_are_those_of_the_framework(make, family, part, options):
    case = make(family, with_part(part, **options))
    model, size = deployable(case.model, case.cfg), torch.tensor([[50, 44]])
    image = padded(model, case.image, 50, 44)
    with torch.no_grad():
        found, expected = model(image, size), model.framework_prediction(image, size)
    count = expected.pop('count')
    assert count > 4 and torch.equal(found['count'], count)
    for name, values in expected.items():
        torch.testing.assert_close(found[name][:, :count], values[:, :count], rtol=1e-4, atol=1e-3)


MASK_RCNN, CASCADE = 'ravlt-nano-mask-rcnn', 'ravlt-cascade'
GRID = dict(grid_roi_extractor=None, grid_head=dict(type='GridHead'))
SSD = dict(
    type='SSDHead', in_channels=(64,),
    anchor_generator=dict(
        type='SSDAnchorGenerator', strides=[8], ratios=[[2]], basesize_ratio_range=(0.15, 0.9)
    ),
)  # fmt: skip
SCORING = dict(type='MaskScoringRoIHead', mask_iou_head=dict(type='MaskIoUHead'))


@pytest.mark.parametrize(
    'family, part, options',
    [
        (MASK_RCNN, 'roi_head', SCORING),
        (MASK_RCNN, 'roi_head', dict(type='DoubleHeadRoIHead', reg_roi_scale_factor=1.3)),
        (MASK_RCNN, 'roi_head', dict(type='TridentRoIHead', num_branch=3, test_branch_idx=1)),
        (MASK_RCNN, 'roi_head', dict(type='GridRoIHead', **GRID)),
        (MASK_RCNN, 'roi_head', dict(bbox_head=dict(type='SABLHead', num_classes=5))),
        (MASK_RCNN, '', dict(type='PanopticFPN')),
        (CASCADE, 'roi_head', dict(type='HybridTaskCascadeRoIHead')),
        (CASCADE, 'roi_head', dict(type='SCNetRoIHead')),
        ('ravlt-nano-retinanet', '', dict(bbox_head=SSD)),
    ],
)
def test_heads_that_predict_in_their_own_way_are_named(shapes_root, family, part, options):
    cfg = shrunk(family, shapes_root)
    with_part(part, **options)(cfg)
    name = options.get('type') or options['bbox_head']['type']
    with pytest.raises(NotDeployable, match=f'^{name} .*has no exported form'):
        deployable(MODELS.build(cfg.model), cfg)


def test_a_head_without_boxes_is_named(shapes_root):
    cfg = shrunk(MASK_RCNN, shapes_root)
    cfg.model.roi_head.bbox_head.with_reg = False
    with pytest.raises(NotDeployable, match='with_reg=False has no exported form'):
        deployable(MODELS.build(cfg.model), cfg)


def test_images_of_a_batch_do_not_meet(make):
    case = make('ravlt-nano-mask-rcnn', lower_threshold)
    model = deployable(case.model, case.cfg)
    other, sizes = case.image.flip(-1), torch.tensor([(64, 64), (50, 44)])
    with torch.no_grad():
        both = model(torch.cat([case.image, other]), sizes)
        for i, image in enumerate((case.image, other)):
            for name, alone in model(image, sizes[i : i + 1]).items():
                torch.testing.assert_close(both[name][i : i + 1], alone, rtol=1e-4, atol=1e-3)


def test_masks_are_those_of_the_head(make):
    """Against the framework's, which come in the size of the image."""
    case = make('ravlt-nano-mask-rcnn', lower_threshold)
    expected = case.sample.pred_instances
    head, cfg = case.model.roi_head.mask_head, case.model.test_cfg.rcnn
    model = deployable(case.model, case.cfg)
    with torch.no_grad():
        found = model(case.image)
    head.class_agnostic = True
    pasted = expected.clone()
    masks = [found['masks'][0, : len(pasted), None].numpy()]
    head.predict_by_feat(
        masks, [pasted], [case.sample.metainfo], cfg, rescale=True, activate_map=True
    )
    different = (pasted.masks != expected.masks).float().mean()
    assert expected.masks.any() and different < 1e-4


def test_suppression_is_greedy_and_bounded():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 8], [20, 20, 30, 30]])
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.0, 0.8, 0.9, 0.6]])
    boxes = boxes.expand(2, -1, -1).contiguous()
    # 10 x 9 over 10 x 10 is 0.9; 10 x 8 over 10 x 9 is 0.89.
    assert suppress(boxes, scores, 0.85, 4).tolist() == [[1, 0, 1, 1], [0, 0, 1, 1]]
    assert suppress(boxes, scores, 0.85, 1).tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
    equal = torch.tensor([[[0.0, 0, 100, 10], [0, 0, 60, 10]]])  # as mmcv: 0.6 is not above 0.6
    assert suppress(equal, torch.tensor([[0.9, 0.8]]), 0.6, 4).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(nms=dict(type='soft_nms', iou_threshold=0.5)), 'soft_nms.*has no exported form'),
        (dict(nms=dict(type='nms', iou_threshold=0.5, max_num=10)), 'max_num.*no exported form'),
        (dict(nms=dict(iou_threshold=0.5, score_threshold=0.1)), 'score_threshold.*no exported'),
        (dict(nms_pre=5000), 'nms_pre must be 1 to 3839 in an exported model: 5000'),
        (dict(max_per_img=-1), 'max_per_img must be 1 to 3839'),
    ],
)
def test_settings_without_an_exported_form_are_named(make, change, message):
    case = make('ravlt-nano-retinanet')
    case.model.test_cfg.update(change)
    with pytest.raises(NotDeployable, match=message):
        deployable(case.model, case.cfg)


def test_boxes_beyond_the_image_are_named(make):
    case = make('ravlt-nano-mask-rcnn')
    for head in (case.model.roi_head.bbox_head, case.model.rpn_head):
        head.bbox_coder.clip_border = False
        with pytest.raises(NotDeployable, match='clip_border=False has no exported form'):
            deployable(case.model, case.cfg)
        head.bbox_coder.clip_border = True


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('modern_heads/rtmdet-ins', 'RTMDetInsSepBNHead predicts in a way'),
        ('linear_decoders/mask2former', 'Mask2Former has no exported form'),
        ('modern_heads/mask2former-semantic', 'Mask2FormerHead has no exported form'),
    ],
)
def test_modern_heads_are_refused_by_name(root, name, message):
    cfg = load_config(str(root / f'configs/{name}_nano_shapes.py'))
    with pytest.raises(NotDeployable, match=message):
        deployable(build_model(cfg), cfg)


@captures
def test_eomt_at_any_size(root):
    """The base class of its head copies the sizes of the images, which are symbols here."""
    cfg = load_config(str(root / 'configs/modern_heads/eomt_nano_shapes.py'))
    built = initial_model(cfg)
    head = built.decode_head
    for layer in (head.cls_embed, head.mask_embed[-1]):  # so that labels differ
        layer.weight.data *= 100
    features, metas = built.extract_feat(torch.randn(1, 3, 64, 96)), [dict(img_shape=(64, 96))]
    expected = super(type(head), head).predict(features, metas, {})
    torch.testing.assert_close(head.predict(features, metas, {}), expected)
    model = deployable(built, cfg)
    image = torch.rand(1, 3, 64, 96) * 255
    exported = Export(model, [], ExportSettings((64, 96)), image)
    other = torch.rand(1, 3, 128, 64) * 255
    with torch.no_grad():
        found, labels = exported.program.module()(other)['labels'], model(other)['labels']
    assert (found != labels).float().mean() < 0.01 and len(labels.unique()) > 1

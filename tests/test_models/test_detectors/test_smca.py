"""The SMCA detector: initial weights, losses, predictions in a batch, errors."""

import importlib
import sys

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import nn

from mmlinattn.models.layers import BaseAttention

from .conftest import build, small_cfg

ATTENTIONS = ('SoftmaxAttention', 'LinearAttention', 'RippleAttention')


def sample(height, width, batch_shape=None, boxes=()):
    """Return a data sample with boxes of class 1."""
    shape = (height, width)
    meta = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
    out = DetDataSample(metainfo=dict(meta, batch_input_shape=batch_shape or shape))
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    out.gt_instances = InstanceData(bboxes=boxes, labels=torch.ones(len(boxes), dtype=torch.long))
    return out


def padded(images):
    """Return a batch padded with zeros, right and bottom, as MMDetection's preprocessor does."""
    height, width = (max(image.shape[i] for image in images) for i in (-2, -1))
    batch = torch.zeros(len(images), 3, height, width)
    for i, image in enumerate(images):
        batch[i, :, : image.shape[-2], : image.shape[-1]] = image
    return batch, (height, width)


@pytest.fixture(params=ATTENTIONS)
def model(request, make):
    return make(request.param)


def test_initial_weights(model):
    attentions = [m for m in model.encoder.modules() if isinstance(m, BaseAttention)]
    assert len(attentions) == 2
    for layer in model.decoder.layers:
        assert layer.scale.weight.abs().max() == 0 and (layer.scale.bias == 1).all()
        assert layer.offset.weight.std() > 0
        attentions += [layer.self_attn, layer.cross_attn]
    for attn in attentions:
        assert attn.in_proj.bias.abs().max() == attn.proj.bias.abs().max() == 0
    bound = (6 / (32 + 32)) ** 0.5
    assert 0.9 * bound < model.decoder.layers[1].cross_attn.proj.weight.abs().max() <= bound
    hidden = model.encoder.layers[0].ffn.layers[0][0]
    assert hidden.weight.abs().max() <= (6 / (32 + 48)) ** 0.5
    assert 0 < hidden.bias.abs().max() <= 32**-0.5
    assert torch.allclose(model.bbox_head.fc_cls.bias, torch.tensor(-4.595), atol=1e-3)
    assert 0.8 < model.query_embedding.weight.std() < 1.2
    projection = model.neck.convs[0].conv
    for parameter in (projection.weight, projection.bias):
        assert 0 < parameter.abs().max() <= 16**-0.5


def test_parameters_of_an_attention_besides_projections_keep_their_initial_values(make):
    model = make(dict(type='RALA', kv_augmentation='learnable', num_tokens=6))
    for layer in model.encoder.layers:
        assert layer.self_attn.token_logits.dim() == 2
        assert layer.self_attn.token_logits.abs().max() == 0


@pytest.mark.parametrize('part', ['', 'encoder', 'decoder', 'neck'])
def test_pretrained_init_cfg_of_a_part_loads_this_part_only(make, tmp_path, part):
    """Test that all other parameters are initialised as released."""
    state = {name: torch.full_like(value, 7) for name, value in make().state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'model.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'model.pth'))
    cfg = small_cfg('SoftmaxAttention')
    if part:
        init_cfg['prefix'] = f'{part}.'
    (cfg[part] if part else cfg)['init_cfg'] = init_cfg
    model = build(cfg)
    for _ in range(2):  # the second call has no effect
        model.init_weights()
        for name, value in model.state_dict().items():
            assert bool((value == 7).all()) == name.startswith(part), name


@pytest.mark.parametrize('boxes', [[], [[10, 10, 60, 50]]])
def test_images_without_boxes(model, boxes):
    batch = torch.randn(2, 3, 64, 96)
    samples = [sample(64, 96), sample(64, 96, boxes=boxes)]
    losses = model.loss(batch, samples)
    total = sum(loss.sum() for loss in losses.values())
    total.backward()
    assert torch.isfinite(total) and float(losses['loss_cls']) > 0
    assert bool(float(losses['loss_bbox'])) == bool(boxes)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
@pytest.mark.parametrize('empty', [(0, 0), (0, 96), (64, 0)])
def test_predictions_of_an_image_without_pixels_are_empty(model, empty):
    batch, samples = torch.randn(2, 3, 64, 96), [sample(*empty, (64, 96)), sample(64, 96)]
    found = [out.pred_instances for out in model.predict(batch, samples)]
    assert [len(instances) for instances in found] == [0, 10]
    for name in ('bboxes', 'scores', 'labels'):
        none, some = (instances[name] for instances in found)
        assert (none.dtype, none.shape[1:]) == (some.dtype, some.shape[1:])
    results = model.predict(batch[:1], samples[:1])
    assert len(results) == 1 and len(results[0].pred_instances) == 0


@torch.no_grad()
def test_prediction_changes_only_pred_instances(model):
    samples = [sample(64, 96, (128, 160)), sample(128, 160, boxes=[[10, 10, 60, 50]])]
    before = [(one.metainfo, one.gt_instances.bboxes.clone()) for one in samples]
    results = model.predict(torch.randn(2, 3, 128, 160), samples)
    for one, result, (metainfo, boxes) in zip(samples, results, before):
        assert result is one and len(one.pred_instances) == 10
        assert one.metainfo == metainfo and torch.equal(one.gt_instances.bboxes, boxes)


@torch.no_grad()
@pytest.mark.parametrize('sizes', [((64, 96), (128, 160)), ((75, 33), (97, 131), (64, 40))])
def test_boxes_do_not_depend_on_the_rest_of_the_batch(model, sizes):
    nn.init.normal_(model.bbox_head.fc_reg.weight, std=0.3)
    for layer in model.decoder.layers:
        nn.init.normal_(layer.scale.weight, std=0.1)
    images = [torch.randn(3, *size) for size in sizes]
    batch, shape = padded(images)
    together = model.predict(batch, [sample(*size, shape) for size in sizes])
    for image, size, found in zip(images, sizes, together):
        (alone,) = model.predict(image[None], [sample(*size)])
        torch.testing.assert_close(
            found.pred_instances.bboxes, alone.pred_instances.bboxes, rtol=0, atol=1e-4
        )
        torch.testing.assert_close(found.pred_instances.scores, alone.pred_instances.scores)
        assert torch.equal(found.pred_instances.labels, alone.pred_instances.labels)


@torch.no_grad()
@pytest.mark.parametrize(
    'classes, wanted, count', [(1, 100, 12), (2, 20, 20), (2, 100, 24), (1, None, 12)]
)
def test_at_most_one_prediction_per_pair_of_query_and_class(make, classes, wanted, count):
    model = make(classes=classes)
    limit = {} if wanted is None else dict(max_per_img=wanted)
    model.bbox_head.test_cfg = limit
    (found,) = model.predict(torch.randn(1, 3, 64, 96), [sample(64, 96)])
    scores = found.pred_instances.scores
    assert len(scores) == count and (scores[:-1] >= scores[1:]).all()
    assert model.bbox_head.test_cfg is limit


@torch.no_grad()
def test_boxes_are_relative_to_the_points(make):
    model = make()
    states, points = torch.randn(3, 2, 12, 32), 3 * torch.randn(2, 12, 2)
    nn.init.zeros_(model.bbox_head.fc_reg.weight)
    nn.init.zeros_(model.bbox_head.fc_reg.bias)
    _, boxes = model.bbox_head(states, points)
    torch.testing.assert_close(boxes[..., :2], points.sigmoid().expand(3, -1, -1, -1))
    assert (boxes[..., 2:] == 0.5).all()
    scores, boxes = model.bfloat16().bbox_head(states.bfloat16(), points.bfloat16())
    assert scores.dtype == boxes.dtype == torch.float32


def test_stride_of_another_backbone_raises(make):
    model = make()
    with pytest.raises(ValueError, match=r'stride=32 does not match the map \(6, 8\) .*96, 128'):
        model.forward_transformer((torch.randn(1, 32, 6, 8),), [sample(96, 128)])


def test_wrong_num_feats_raises():
    cfg = small_cfg('RALA')
    cfg['positional_encoding']['num_feats'] = 15
    with pytest.raises(ValueError, match='num_feats=15 must be half of embed_dims=32'):
        build(cfg)


@pytest.fixture
def reimport_with(monkeypatch):
    """Return a function that reimports the package while MMDetection raises an error."""

    def call(error):
        class Finder:
            @staticmethod
            def find_spec(name, *_):
                if name == 'mmdet.models':
                    raise error

        names = [name for name in sys.modules if name.startswith('mmlinattn.models.detectors')]
        for name in [*names, 'mmdet.models']:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, 'meta_path', [Finder, *sys.meta_path])
        return importlib.import_module('mmlinattn.models.detectors')

    return call


@pytest.mark.parametrize(
    'error',
    [
        ImportError('no mmcv._ext'),
        AssertionError('MMCV==3.0 is used but incompatible'),
        TypeError('NoneType takes no arguments'),  # MMPretrain 1.3 with transformers 5
    ],
)
def test_missing_mmdetection_is_reported_on_access(reimport_with, error):
    package = reimport_with(error)
    with pytest.raises(ImportError, match=f'SMCA needs MMDetection: pip install.*{error}'):
        _ = package.SMCA


def test_other_import_errors_are_raised(reimport_with):
    with pytest.raises(TypeError, match='a bug of ours'):
        reimport_with(TypeError('a bug of ours'))

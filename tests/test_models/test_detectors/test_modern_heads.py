"""The configs of configs/modern_heads: rates, layers, weights to start from, first steps."""

import json
import re

import cv2
import numpy as np
import pytest
import torch
from mmdet.datasets import CocoPanopticDataset
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope
from pycocotools import mask as coco_masks

from mmlinattn.datasets import shapes
from tests.sizes import some
from tests.test_configs import built, cost_of, load, optimizer_of, printed, readme
from tests.test_tools.test_every_recipe import smaller

VITDET = 'vitdet_deit-b_16xb4-100e_coco'
VITDET_MALA = 'vitdet-mala_deit-b_16xb4-100e_coco'
PANOPTIC = 'mask2former_ravlt-t_8xb2-lsj-50e_coco-panoptic'
NANO = (
    'rtmdet_nano', 'rtmdet-ins_nano', 'vitdet_nano', 'vitdet-mala_nano', 'eomt_nano',
    'mask2former-semantic_nano',
)  # fmt: skip
README = readme('modern_heads', 'G, here')
RTMDET = ('rtmdet_ravlt-t_4xb32-100e_coco', 'rtmdet-ins_ravlt-t_4xb32-100e_coco')


def test_rates_of_vitdet_fall_by_0_7_from_layer_to_layer():
    model = built(VITDET)
    with DefaultScope.overwrite_default_scope('mmdet'):
        groups = optimizer_of(load(VITDET), model).param_groups
    found = {id(p): (g['lr'], g['weight_decay']) for g in groups for p in g['params']}
    for name, parameter in model.named_parameters():
        layer = re.match(r'backbone\.layers\.(\d+)\.', name)
        below = 12 - int(layer[1]) if layer else 13 if name.startswith('backbone.embed.') else 0
        norm = re.search(r'\.(norm\d?|ln|scales\.0\.1|outs\.\d\.[13])\.(weight|bias)$', name)
        decay = 0.0 if norm or name.endswith('pos_embed') else 0.1
        assert found[id(parameter)] == (pytest.approx(1e-4 * 0.7**below), decay), name


@pytest.mark.parametrize(('name', 'kind'), [(VITDET, 'SoftmaxAttention'), (VITDET_MALA, 'MALA')])
def test_global_layers_of_vitdet(name, kind):
    """One at the end of each quarter, windows of 14 in the others."""
    attns = [layer.attn for layer in built(name).backbone.layers]
    expected = [kind if i in (2, 5, 8, 11) else 'WindowAttention' for i in range(12)]
    assert [type(attn).__name__ for attn in attns] == expected
    assert {attn.window_size for attn in attns if hasattr(attn, 'window_size')} == {14}


@pytest.mark.parametrize('name', RTMDET)
def test_rtmdet_takes_what_its_backbone_was_trained_on(name):
    """MMDetection's first RTMDet has BGR images and batch norm over 32 images a process."""
    cfg = load(name)
    preprocessor = load('ravlt-t_8xb128_in1k').data_preprocessor
    for key in ('mean', 'std'):
        assert cfg.model.data_preprocessor[key] == preprocessor[key]
    assert cfg.model.data_preprocessor.bgr_to_rgb
    norms = [type(m) for m in built(name).modules() if 'Norm' in type(m).__name__]
    outside = norms[sum('Norm' in type(m).__name__ for m in built(name).backbone.modules()) :]
    assert set(outside) == {torch.nn.GroupNorm}
    ema, switch = cfg.custom_hooks
    assert ema.type == 'EMAHook' and switch.switch_epoch == 90
    assert cfg.tta_model.type == 'DetTTAModel' and cfg.tta_pipeline
    assert cfg.train_cfg.max_epochs == 100 and cfg.optim_wrapper.optimizer.lr == 1e-3


@pytest.mark.parametrize('name', NANO)
def test_first_steps_of_small_models(shapes_root, name):
    """Losses are finite, every parameter learns, and predictions are finite."""
    cfg = load(f'{name}_shapes')
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        folder = 'ade' if cfg.default_scope == 'mmseg' else 'coco/'
        loader.dataset.data_root = f'{shapes_root}/{folder}'
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        model.init_weights()
        wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper))
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        train = DATASETS.build(cfg.train_dataloader.dataset)
        # The first step moves what later gradients go through. A level of the neck learns once
        # a random proposal is of its size.
        for step in range(12):
            losses = model.train_step(pseudo_collate([train[0], train[1]]), wrapper)
            assert all(torch.as_tensor(value).isfinite().all() for value in losses.values())
            moved = {n for n, p in model.named_parameters() if not p.equal(before[n])}
            if step and {*map(_without_level, before)} == {*map(_without_level, moved)}:
                break
        test = DATASETS.build(cfg.test_dataloader.dataset)
        with torch.no_grad():
            (result,) = model.eval().test_step(pseudo_collate([test[0]]))
    # RTMDet's level of large objects learns no boxes where there are none.
    assert {*map(_without_level, before)} == {*map(_without_level, moved)}
    found = result.seg_logits.data if 'seg_logits' in result else result.pred_instances.scores
    assert found.isfinite().all()


def test_masks_of_images_of_several_sizes(shapes_root):
    """The loss stacks them: they must be padded with their images."""
    cfg = load('rtmdet-ins_nano_shapes')
    cfg.train_dataloader.dataset.data_root = f'{shapes_root}/coco/'
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
        wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper))
        train = DATASETS.build(cfg.train_dataloader.dataset)
        whole, part = train[0], train[1]
        part['inputs'] = part['inputs'][:, :50, :38]
        sample = part['data_samples']
        sample.gt_instances.masks = sample.gt_instances.masks.crop(np.array([0, 0, 38, 50]))
        sample.set_metainfo(dict(img_shape=(50, 38)))
        losses = model.train_step(pseudo_collate([whole, part]), wrapper)
    assert all(torch.as_tensor(value).isfinite().all() for value in losses.values())


@pytest.mark.long
@pytest.mark.parametrize('name', some(README, every=9))
def test_costs_of_readme(name):
    row = README[name]
    cost = cost_of(name, tuple(map(int, row['measured at'].split('x'))))
    printed(row['M, here'], cost.params / 1e6)
    printed(row['G, here'], cost.total / 1e9)


def _without_level(name):
    return re.sub(r'^bbox_head\.(\w+)\.\d\.', r'bbox_head.\1.', name)


def test_cost_of_a_segmentor_whose_head_needs_samples():
    """The feed-forward layer of Mask2Former's decoder: 20 queries, 64 and 128 channels."""
    cost = cost_of('mask2former-semantic_nano_shapes', (64, 64))
    layer = cost.by_module['decode_head.transformer_decoder.layers.0.ffn']
    assert layer.conv_linear == 20 * 2 * 64 * 128 and not cost.uncounted


@pytest.fixture(scope='module')
def panoptic_root(tmp_path_factory):
    """Shapes as COCO's panoptic annotations: shapes are its first things, the rest is stuff."""
    root = tmp_path_factory.mktemp('panoptic') / 'shapes'
    coco = shapes.generate(root, num_train=2, num_val=1, image_size=128) / 'coco'
    names, things = (CocoPanopticDataset.METAINFO[k] for k in ('classes', 'thing_classes'))
    for split in ('train', 'val'):
        instances = json.loads((coco / f'annotations/instances_{split}2017.json').read_bytes())
        folder, annotations = coco / f'annotations/panoptic_{split}2017', []
        folder.mkdir()
        for image in instances['images']:
            found = [a for a in instances['annotations'] if a['image_id'] == image['id']]
            annotations.append(_write_panoptic(folder, image, found, len(things) + 1))
        categories = [
            dict(id=i, name=name, isthing=int(i <= len(things))) for i, name in enumerate(names, 1)
        ]
        panoptic = dict(images=instances['images'], annotations=annotations, categories=categories)
        (coco / f'annotations/panoptic_{split}2017.json').write_text(json.dumps(panoptic))
    return coco


def _write_panoptic(folder, image, instances, stuff):
    """Write the map of the segments of an image, whose colours are their numbers."""
    side, name = image['width'], image['file_name'].replace('.jpg', '.png')
    ids = np.full((side, side), 1000, np.int64)
    segments = [dict(id=1000, category_id=stuff, area=side**2, bbox=[0, 0, side, side], iscrowd=0)]
    for number, instance in enumerate(instances, 300):
        rle = coco_masks.merge(coco_masks.frPyObjects(instance['segmentation'], side, side))
        ids[coco_masks.decode(rle) > 0] = number
        keys = ('category_id', 'area', 'bbox', 'iscrowd')
        segments.append(dict({key: instance[key] for key in keys}, id=number))
    cv2.imwrite(str(folder / name), np.stack([ids * 0, ids // 256, ids % 256], -1))  # as BGR
    return dict(image_id=image['id'], file_name=name, segments_info=segments)


def test_one_step_of_panoptic_segmentation(panoptic_root, panopticapi):
    """Masks of things and stuff, from the files to the losses, and one segment for each pixel."""
    cfg = load(PANOPTIC)
    cfg.model.backbone.init_cfg = None
    cfg.model.data_preprocessor.batch_augments[0].size = (128, 128)
    head = cfg.model.panoptic_head
    head.transformer_decoder.num_layers, head.pixel_decoder.encoder.num_layers = 2, 1
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = f'{panoptic_root}/'
        loader.dataset.pipeline = smaller(loader.dataset.to_dict()['pipeline'])
        for step in loader.dataset.pipeline:
            step.pop('ratio_range', None)  # objects stay large enough to be seen
            if step['type'] == 'RandomResize':
                step['ratio_range'] = (1.0, 1.0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
        model.init_weights()
        train, test = (
            DATASETS.build(loader.dataset) for loader in (cfg.train_dataloader, cfg.test_dataloader)
        )
        samples = [train[i] for i in range(2)]
        for sample in samples:
            label_map = sample['data_samples'].gt_sem_seg.sem_seg
            labels = sample['data_samples'].gt_instances.labels
            assert {*label_map.unique().tolist()} == {80, *labels.tolist()} and len(labels) > 0
        wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper))
        losses = model.train_step(pseudo_collate(samples), wrapper)
        assert all(torch.as_tensor(value).isfinite().all() for value in losses.values())
        with torch.no_grad():
            (result,) = model.eval().test_step(pseudo_collate([test[0]]))
    assert result.pred_panoptic_seg.sem_seg.shape == (1, 128, 128)
    assert result.pred_instances.masks.shape[1:] == (128, 128)

"""One training step and one test step of every config with a recipe, on a little data."""

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

from mmlinattn.datasets.shapes import CLASSES
from mmlinattn.engine.runner.runner import plain_batch_norm
from tests.cifar import write_cifar100
from tests.sizes import some
from tests.test_configs import load
from tests.test_recipes import OF_RECIPES

pytestmark = pytest.mark.slow

# Side of the images that reach a classifier; images of dense models are an eighth of their size.
SIDES = {'cifar100': 32, 'in1k-384px': 384, 'in1k': 224}
SHRINK = 8


def smaller(node):
    """Divide the sizes of a pipeline, in all its branches."""
    if isinstance(node, dict):
        sizes = ('scale', 'scales', 'crop_size')
        return {k: _divided(v) if k in sizes else smaller(v) for k, v in node.items()}
    return [smaller(x) for x in node] if isinstance(node, (list, tuple)) else node


def _divided(size):
    if isinstance(size, int):
        return max(size // SHRINK, 32)
    return type(size)(map(_divided, size))


@pytest.fixture(scope='module')
def cifar(tmp_path_factory):
    return write_cifar100(tmp_path_factory.mktemp('data') / 'cifar')[0]


@pytest.fixture
def data_root(request, shapes_root):
    """Return a function from the name of a data set class to the folder of its data."""
    fixtures = dict(CIFAR100Binary='cifar', CityscapesDataset='cityscapes', CocoDataset='coco_root')

    def find(kind):
        if kind in ('ADE20KDataset', 'ImageNet'):
            return str(shapes_root / dict(ADE20KDataset='ade', ImageNet='imagenet')[kind])
        return str(request.getfixturevalue(fixtures[kind]))

    return find


def prepare(cfg, data_root):
    """Point the loaders of a config to the little data, and shrink the images of dense models."""
    for split in ('train', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        dataset.data_root = data_root(dataset.type)
        if dataset.type == 'ImageNet':
            dataset.metainfo = dict(classes=CLASSES)
        if cfg.default_scope != 'mmpretrain':
            dataset.pipeline = smaller(dataset.to_dict()['pipeline'])
    cfg.model.backbone.init_cfg = None
    if cfg.default_scope == 'mmseg':
        size = cfg.model.data_preprocessor.size
        cfg.model.data_preprocessor.size = tuple(side // 8 for side in size)
        if cfg.model.test_cfg.mode == 'slide':
            for key in ('crop_size', 'stride'):
                cfg.model.test_cfg[key] = tuple(side // 8 for side in cfg.model.test_cfg[key])


# Videos and reconstruction have trainings of their own: tests/test_projects.
OF_IMAGES = [n for n in OF_RECIPES if 'timesformer' not in n and 'vqgan' not in n]


@pytest.mark.long
@pytest.mark.parametrize('name', some(OF_IMAGES, every=14))
def test_one_step_of_training_and_of_testing(name, data_root):
    cfg = load(name)
    prepare(cfg, data_root)
    torch.manual_seed(0)
    np.random.seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = plain_batch_norm(MODELS.build(cfg.model)).train()
        model.init_weights()
        wrapper = dict(cfg.optim_wrapper, type='OptimWrapper', accumulative_counts=1)
        wrapper.pop('loss_scale', None)
        optim_wrapper = build_optim_wrapper(model, wrapper)
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        samples = [dataset[i] for i in range(2)]
        before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        losses = model.train_step(pseudo_collate(samples), optim_wrapper)
        assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values())
        moved = [n for n, p in model.named_parameters() if n in before and not p.equal(before[n])]
        # A branch that stochastic depth drops, and a mask without an object, have no gradient.
        assert len(moved) > 0.5 * len(before)
        tested = DATASETS.build(cfg.test_dataloader.dataset)[0]
        with torch.no_grad():
            (result,) = model.eval().test_step(pseudo_collate([tested]))
    if cfg.default_scope == 'mmpretrain':
        side = next(side for kind, side in SIDES.items() if name.endswith(kind))
        assert {s['inputs'].shape for s in (*samples, tested)} == {(3, side, side)}
        assert result.pred_score.sum() == pytest.approx(1, abs=1e-4)
    elif cfg.default_scope == 'mmseg':
        assert result.pred_sem_seg.shape[-2:] == result.ori_shape
    else:
        assert torch.isfinite(result.pred_instances.bboxes).all()

"""Training passes over images that cannot be read, counts them, and stops above a limit."""

import copy
import json
import pickle

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmlinattn.datasets import shapes
from mmlinattn.engine.hooks.skip_corrupt_hook import SkippedImages
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.engine.preflight.sample_loading import check_loading
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=8, num_val=1, image_size=64, workers=1)


def cut(folder, *indices):
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    for i in indices:
        paths[i].write_bytes(paths[i].read_bytes()[:-300])
    return [str(paths[i]) for i in indices]


def train(family, root, work_dir, share, workers=0, epochs=2, **options):
    cfg = shrunk(family, root)
    cfg.train_dataloader.update(
        skip_corrupt=share, num_workers=workers, persistent_workers=workers > 0
    )
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.merge_from_dict(options)
    keep = ('model', 'train_dataloader', 'default_scope', 'custom_imports')
    cfg = Config({k: cfg[k] for k in keep if k in cfg})
    cfg.update(
        work_dir=str(work_dir),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        default_hooks=dict(checkpoint=None),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-4)),
        custom_hooks=[dict(type='ExactResumeHook')],
        experiment_name=work_dir.name,
    )
    runner = PluginRunner.from_cfg(cfg)
    runner.train()
    return ''.join(path.read_text() for path in work_dir.glob('*/*.log'))


@pytest.mark.parametrize('workers', [0, 2])
def test_a_truncated_jpeg_is_passed_over_and_counted_once(root, tmp_path, workers):
    bad = cut(root / 'coco/train2017', 2, 5)
    log = train('ravlt-retinanet', root, tmp_path / 'work', 0.25, workers)
    for path in bad:
        assert log.count(f'skip_corrupt: {path} (') == 1
    assert 'skip_corrupt: 2 of 8 images were skipped.' in log
    assert '8/8' not in log and '[2][4/4]' in log  # all batches of both epochs


def test_more_than_the_limit_ends_the_training(root, tmp_path):
    bad = cut(root / 'imagenet/train', 2, 5)
    with pytest.raises(
        DataError, match=r'[12] of 28 images .* more than skip_corrupt=0.05 .*check-data'
    ) as error:
        train('ravlt-nano-cls', root, tmp_path / 'work', 0.05)
    assert any(path in str(error.value) for path in bad)


def test_without_the_policy_it_ends_where_the_image_is_read(root, tmp_path):
    (bad,) = cut(root / 'imagenet/train', 2)
    with pytest.raises(DataError, match=f'{bad} cannot be loaded: failed to load image'):
        train('ravlt-nano-cls', root, tmp_path / 'work', None)


def test_maps_of_a_segmentor_and_pictures_of_a_classifier(root, tmp_path):
    (bad,) = cut(root / 'cityscapes/gtFine/train', 1)
    log = train('segformer', root, tmp_path / 'seg', 0.2)
    assert 'skip_corrupt: 1 of 8 images were skipped.' in log
    (bad,) = cut(root / 'imagenet/train', 3)
    log = train('ravlt-nano-cls', root, tmp_path / 'cls', 0.2)
    assert f'{bad} (' in log and 'images were skipped.' in log


def test_parts_of_joined_and_repeated_data_sets(root):
    dataset = shrunk('ravlt-retinanet', root).train_dataloader.dataset
    bad = cut(root / 'coco/train2017', 6)
    joined = DATASETS.build(
        dict(
            type='ConcatDataset',
            datasets=[dataset, dict(type='RepeatDataset', times=2, dataset=dataset)],
        )
    )
    check_loading(joined)
    skipped = SkippedImages(joined, 0.5)
    assert skipped.total == 16
    assert len([joined[i] for i in range(len(joined))]) == 24
    flagged = skipped.flags.nonzero().flatten().tolist()
    assert flagged == [6, 14]
    assert all(skipped.describe(i).startswith(f'{bad[0]} (') for i in flagged)


@pytest.mark.parametrize('name', ['val', 'test'])
def test_evaluation_passes_over_nothing(root, tmp_path, name):
    cfg = shrunk('ravlt-nano-cls', root)
    cfg[f'{name}_dataloader'].skip_corrupt = 0.1
    cfg.work_dir = str(tmp_path)
    cfg.experiment_name = tmp_path.name
    runner = PluginRunner.from_cfg(cfg)
    with pytest.raises(DataError, match=rf'{name}_dataloader\.skip_corrupt=0\.1: only train_'):
        runner.prepare_training() if name == 'val' else runner.test()


def test_a_share_that_is_none(root):
    dataset = DATASETS.build(shrunk('ravlt-retinanet', root).train_dataloader.dataset)
    for share in (-0.1, 1.5, True, '0.1'):
        with pytest.raises(DataError, match=f'0 to 1, got {share!r}'):
            SkippedImages(dataset, share)


def test_faults_of_other_transforms_are_not_hidden(root):
    cfg = shrunk('ravlt-retinanet', root).train_dataloader.dataset
    dataset = DATASETS.build(cfg)

    def fault(results):
        raise KeyError('a fault of the config')

    dataset.pipeline.transforms.append(fault)
    check_loading(dataset)
    SkippedImages(dataset, 0.5)
    with pytest.raises(KeyError, match='a fault of the config'):
        dataset[0]


def test_an_outline_that_would_take_all_memory(root):
    path = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['segmentation'][0][3] = float('nan')
    content['annotations'][1]['segmentation'][0][3] = 1e12
    path.write_text(json.dumps(content))
    images = {content['annotations'][i]['image_id'] for i in (0, 1)}
    dataset = PluginRunner.build_dataloader(
        shrunk('ravlt-mask-rcnn', root).train_dataloader
    ).dataset
    for i in range(len(dataset)):
        if dataset.get_data_info(i)['img_id'] in images:
            with pytest.raises(DataError, match='cannot be loaded: the mask of instance'):
                dataset[i]
        else:
            assert len(dataset[i]['data_samples'].gt_instances)


def test_data_sets_can_be_copied_and_sent(root):
    """As wrappers and workers that are spawned do."""
    cfg = shrunk('ravlt-retinanet', root)
    dataset = PluginRunner.build_dataloader(cfg.train_dataloader).dataset
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert copied[0]['inputs'].shape == dataset[0]['inputs'].shape
        assert copied.pipeline.transforms[0].color_type == 'color'

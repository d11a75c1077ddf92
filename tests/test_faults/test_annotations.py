"""Damaged COCO annotations: findings, or a data set of which every sample can be trained on."""

import json
import random

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight.data import DataError, labels_of
from mmlinattn.engine.preflight.run import check_run
from mmlinattn.engine.preflight.sample_loading import check_samples
from tests.families import shrunk
from tests.test_faults.damage import damaged_bytes, damaged_tree, seeds, try_all

pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    return shapes.generate(folder, num_train=3, num_val=1, image_size=64)


def check_sample(sample):
    instances = sample['data_samples'].gt_instances
    boxes = instances.bboxes.tensor
    assert boxes.isfinite().all() and (boxes[:, 2:] >= boxes[:, :2]).all(), boxes
    assert ((instances.labels >= 0) & (instances.labels < len(shapes.CLASSES))).all()
    assert len(instances.masks) == len(boxes)


def test_any_record_and_any_byte(root):
    cfg = shrunk('ravlt-mask-rcnn', root)
    path = root / 'coco/annotations/instances_train2017.json'
    whole = path.read_bytes()
    tree = json.loads(whole)
    # Run lengths beside the outlines.
    first = tree['annotations'][0]
    first['segmentation'] = dict(size=[64, 64], counts=[100, 200, 64 * 64 - 300])

    def case(seed):
        dice = random.Random(seed)
        if seed % 4:
            changed, what = damaged_tree(tree, dice)
            for _ in range(dice.choice((0, 0, 0, 2))):
                changed, more = damaged_tree(changed, dice)
                what += f', {more}'
            path.write_text(json.dumps(changed))
        else:
            path.write_bytes(damaged_bytes(whole, dice))
            what = 'bytes'
        np.random.seed(seed)
        try:
            found = check_run(cfg, 'train')
            dataset = DATASETS.build(cfg.train_dataloader.dataset)
            check_samples(dataset, labels_of(cfg))
        except (DataError, FileNotFoundError) as error:
            assert str(error).strip()
            return 'refused'
        except Exception as error:
            raise AssertionError(f'{what}: not a clear error: {error!r}') from error
        try:
            for i in range(len(dataset)):
                check_sample(dataset[i])
        except Exception as error:
            raise AssertionError(f'{what}: checked, but {error!r}') from error
        return 'found, can be trained on' if found else 'fine'

    try:
        try_all(case, seeds(146, 293, 709, 1061, short=6))
    finally:
        path.write_bytes(whole)

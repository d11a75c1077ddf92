"""A damaged image is an error with its name, or a picture."""

import random

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight.data import DataError, labels_of
from mmlinattn.engine.preflight.sample_loading import check_samples
from tests.families import shrunk
from tests.test_faults.damage import damaged_bytes, seeds, try_all

pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    return shapes.generate(folder, num_train=3, num_val=1, image_size=64)


# Of a detector JPEG pictures with sizes in the annotation, of a segmentor PNG pictures and maps.
@pytest.mark.parametrize(
    'family, folder',
    [
        ('ravlt-retinanet', 'coco/train2017'),
        ('segformer', 'cityscapes/leftImg8bit/train'),
        ('segformer', 'cityscapes/gtFine/train'),
    ],
)
def test_any_byte(root, family, folder):
    paths = sorted(path for path in (root / folder).rglob('*') if path.is_file())
    whole = [path.read_bytes() for path in paths]
    cfg = shrunk(family, root)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    check_samples(dataset, labels_of(cfg))

    def case(seed):
        dice = random.Random(seed)
        i = dice.randrange(len(paths))
        try:
            paths[i].write_bytes(damaged_bytes(whole[i], dice))
            np.random.seed(seed)
            sample = dataset[i]
        except DataError as error:
            assert paths[i].name in str(error), error
            return 'refused'
        finally:
            paths[i].write_bytes(whole[i])
        # What has no check sums may change unseen: the pixels of a JPEG.
        assert sample['inputs'].shape[0] == 3 and sample['inputs'].ndim == 3
        return 'a picture'

    try_all(case, seeds(short=60))

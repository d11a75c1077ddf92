"""A damaged image is a finding, or a picture; training passes over it, or gets a picture."""

import random

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmlinattn.datasets import shapes
from mmlinattn.engine.hooks.skip_corrupt_hook import SkippedImages
from mmlinattn.engine.preflight.file_audit import FileRecord, audit_file
from mmlinattn.engine.preflight.sample_loading import check_loading
from tests.families import shrunk
from tests.test_faults.damage import damaged_bytes, seeds, try_all

pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    return shapes.generate(folder, num_train=3, num_val=1, image_size=64, workers=1)


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
    dataset = DATASETS.build(shrunk(family, root).train_dataloader.dataset)
    check_loading(dataset)
    skipped = SkippedImages(dataset, 1.0)
    size = (64, 64)

    def case(seed):
        dice = random.Random(seed)
        i = dice.randrange(len(paths))
        try:
            paths[i].write_bytes(damaged_bytes(whole[i], dice))
            info = dataset.get_data_info(i)
            record = FileRecord(
                info['img_path'], size, info.get('seg_map_path'), frozenset(range(19))
            )
            _, found = audit_file(record)
            skipped.flags.zero_()
            np.random.seed(seed)
            sample = dataset[i]
        finally:
            paths[i].write_bytes(whole[i])
        assert sample['inputs'].shape[0] == 3 and sample['inputs'].ndim == 3
        if skipped.flags[i]:
            assert found, f'passed over in training, but nothing was found: {skipped.describe(i)}'
            return 'found, passed over'
        # What has no check sums may change unseen: the pixels of a JPEG.
        return 'found, a picture' if found else 'a picture'

    try_all(case, seeds(short=60))

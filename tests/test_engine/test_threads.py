"""One model, or one file, used by several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS

from mmlinattn.checkpoints import read_checkpoint
from mmlinattn.datasets import shapes
from tests.families import shrunk

THREADS = 8


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    return shapes.generate(folder, num_train=1, num_val=4, image_size=64)


def tensors(sample):
    """What a prediction is made of, by name."""
    found = {}
    for name in ('pred_instances', 'pred_sem_seg'):
        found.update(dict(getattr(sample, name, {}).items()))
    if hasattr(sample, 'pred_score'):
        found['score'] = sample.pred_score
    assert found
    return found


@pytest.mark.parametrize(
    'family', ['ravlt-mask-rcnn', 'segformer-rwgka', 'swin-upernet', 'ravlt-cls', 'smca-ripple']
)
def test_predictions_of_threads_are_the_serial_ones(root, family):
    cfg = shrunk(family, root)
    model = MODELS.build(cfg.model).eval()
    data = DATASETS.build(cfg.val_dataloader.dataset)
    batches = [pseudo_collate([data[i]]) for i in range(4)]

    @torch.no_grad()
    def predict(i):
        return tensors(model.test_step(batches[i % 4])[0])

    serial = [predict(i) for i in range(4)]
    with ThreadPoolExecutor(THREADS) as threads:
        for i, found in enumerate(threads.map(predict, range(2 * THREADS))):
            assert found.keys() == serial[i % 4].keys()
            for name, value in found.items():
                assert (value == serial[i % 4][name]).all(), (i, name)


def test_checkpoints_are_read_by_threads(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    path = tmp_path / 'a.pth'
    # An array is what torch reads only while this package lets it.
    torch.save(dict(state_dict=dict(w=torch.ones(2)), meta=dict(a=np.arange(3))), path)
    with ThreadPoolExecutor(THREADS) as threads:
        for content in threads.map(read_checkpoint, [path] * 200):
            assert (content['meta']['a'] == np.arange(3)).all()
    assert set(torch.serialization.get_safe_globals()) == before

"""ImageNet-V2: the class is the number of the folder, whatever the order of the names."""

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from mmlinattn.datasets import ImageNetV2, imagenet_v2

LABELS = (0, 1, 2, 10, 11, 999)


@pytest.fixture
def small(tmp_path):
    """Two images a folder, as gray as the class."""
    for label in LABELS:
        folder = tmp_path / 'v2' / str(label)
        folder.mkdir(parents=True)
        for i in range(2):
            Image.new('RGB', (40, 30), (label % 256,) * 3).save(folder / f'{i}.jpeg')
        (folder / 'list.txt').write_text('no image')
    return tmp_path / 'v2'


def test_class_is_the_number_of_the_folder(small, monkeypatch):
    said = []
    monkeypatch.setattr(imagenet_v2, 'log_warning', lambda text: said.append(text))
    dataset = DATASETS.build(dict(type='ImageNetV2', data_root=str(small)))
    assert [sample['gt_label'] for sample in dataset] == sorted([*LABELS, *LABELS])
    for sample in dataset:
        assert sample['img_path'].split('/')[-2] == str(sample['gt_label'])
    assert said == [f'{small} has 12 images, each released set 10000']


@pytest.mark.parametrize('size', 'tsbl')
def test_configs_read_it_by_the_pipeline_of_imagenet(root, small, size):
    cfg = Config.fromfile(root / f'configs/ravlt/ravlt-{size}_imagenet-v2.py')
    plain = Config.fromfile(root / f'configs/ravlt/ravlt-{size}_8xb128_in1k.py')
    assert cfg.model == plain.model and cfg.val_dataloader == plain.val_dataloader
    assert cfg.test_dataloader.dataset.pipeline == plain.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.data_root = str(small)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        for i in (0, 5, 11):
            sample = dataset[i]
            label = int(sample['data_samples'].gt_label)
            assert sample['inputs'].shape == (3, 224, 224)
            assert np.abs(sample['inputs'].float().mean().item() - label % 256) < 2


@pytest.mark.parametrize('name', ['n01440764', '1000', '-1', '²'])
def test_folders_that_are_no_classes(small, name):
    (small / name).mkdir()
    with pytest.raises(ValueError, match=f"the folder '{name}', .* from 0 to 999"):
        ImageNetV2(str(small))


def test_folders_without_images(tmp_path):
    (tmp_path / '0').mkdir()
    with pytest.raises(ValueError, match='has no images in folders 0 to 999'):
        ImageNetV2(str(tmp_path))
    with pytest.raises(FileNotFoundError, match='absent does not exist; .*#imagenet-v2'):
        ImageNetV2(str(tmp_path / 'absent'))

"""CIFAR-100's binary files: every pixel and label, and errors that name the file."""

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmlinattn.datasets import CIFAR100Binary, cifar
from tests.cifar import write_cifar100


@pytest.fixture
def small(tmp_path):
    return write_cifar100(tmp_path / 'cifar-100-binary')


@pytest.mark.parametrize('split', ['train', 'test'])
def test_pixels_and_labels(small, split, monkeypatch):
    root, content = small
    said = []
    monkeypatch.setattr(cifar, 'log_warning', lambda text: said.append(text))
    images, labels = content[split]
    dataset = DATASETS.build(dict(type='CIFAR100Binary', data_root=str(root), split=split))
    assert len(dataset) == len(labels)
    for i, (image, label) in enumerate(zip(images, labels)):
        sample = dataset[i]
        assert sample['img'].dtype == np.uint8 and sample['img'].flags.writeable
        assert np.array_equal(sample['img'], image[:, :, ::-1])  # BGR
        assert type(sample['gt_label']) is int and sample['gt_label'] == label
    assert dataset.metainfo['classes'] == tuple(f'kind_{i}' for i in range(100))
    released = dict(train=50000, test=10000)[split]
    path = root / f'{split}.bin'
    assert said == [f'{path} has {len(labels)} images, the released file {released}']


def test_own_names_of_classes(small):
    root, _ = small
    (root / 'fine_label_names.txt').unlink()
    names = tuple('abc')
    dataset = CIFAR100Binary(str(root), metainfo=dict(classes=names))
    assert dataset.metainfo['classes'] == names


@pytest.mark.parametrize(
    ('file', 'change', 'error', 'message'),
    [
        ('train.bin', None, FileNotFoundError, r'train\.bin does not exist; .*ripple.*#data'),
        ('train.bin', lambda data: data[:-1], ValueError, r'train\.bin has 24591 bytes.* of 3074'),
        ('train.bin', lambda data: b'', ValueError, r'train\.bin has 0 bytes'),
        ('train.bin', lambda data: data[:1] + b'\x64' + data[2:], ValueError, 'labels above 99'),
        ('fine_label_names.txt', None, FileNotFoundError, r'fine_label_names\.txt does not exist'),
        ('fine_label_names.txt', lambda data: data + b'more', ValueError, r'txt has 101 names'),
    ],
)
def test_files_that_cannot_be_used(small, file, change, error, message):
    path = small[0] / file
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=message):
        CIFAR100Binary(str(small[0]))

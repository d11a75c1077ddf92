"""Shards: what is written, what is read of it, and in which order by whom."""

import copy
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import tarfile
import zlib
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine import fileio
from mmengine.dataset import BaseDataset, pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from torch.utils.data import DataLoader

from mmlinattn.datasets import ShardDataset, ShardSampler, shapes
from mmlinattn.datasets.shards import DamagedSample, TarMemberBackend, write, write_shards
from mmlinattn.datasets.shards import dataset as reading
from mmlinattn.datasets.shards import sampler as sampling
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.engine.preflight.dataset_audit import audit_dataset
from mmlinattn.engine.preflight.sample_loading import check_loading
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.engine.runner.train_loop import _skip_batches
from mmlinattn.utils import WriteError
from tests.families import shrunk
from tests.object_store import upload
from tests.programs import Program

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {'det': 'ravlt-mask-rcnn', 'seg': 'ravlt-semantic-fpn', 'cls': 'ravlt-nano-cls'}
COUNT = 23


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    return shapes.generate(
        tmp_path_factory.mktemp('data') / 'shapes', COUNT, 2, image_size=64, workers=1
    )


@pytest.fixture(scope='module')
def config(root):
    """Of a training set: config(task) -> dict."""

    def make(task: str) -> dict:
        cfg = shrunk(FAMILIES[task], root)
        init_default_scope(cfg.default_scope)
        return cfg.train_dataloader.dataset.to_dict()

    return make


def written(config: dict, folder: Path, size: int = 40_000, **options) -> Path:
    dataset = DATASETS.build(dict(config, pipeline=[]))
    return write_shards(dataset, folder, 'train', size, **options)


def read(index: Path, config: dict, **options) -> ShardDataset:
    options = dict(data_root=str(index.parent), pipeline=config['pipeline'], **options)
    return DATASETS.build(dict(type='ShardDataset', ann_file=index.name, **options))


def digests(folder: Path) -> dict:
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()
    }


def same(a, b) -> bool:
    """Of what pipelines return."""
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return bool((a == b).all())
    if hasattr(a, 'all_items'):
        a, b = (
            {k: v for k, v in x.all_items() if k not in ('img_path', 'seg_map_path')}
            for x in (a, b)
        )
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if hasattr(a, 'masks'):
        return len(a) == len(b) and all(map(np.array_equal, a.to_ndarray(), b.to_ndarray()))
    if hasattr(a, 'tensor'):
        return same(a.tensor, b.tensor)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize('task', ['det', 'seg', 'cls'])
def test_pipelines_give_what_they_give_of_files(config, tmp_path, task):
    cfg = config(task)
    files = DATASETS.build(cfg)
    shards = read(written(cfg, tmp_path), cfg)
    check_loading(shards)
    assert len(shards) == len(files) >= COUNT
    for key in ('classes', 'palette', 'label_map'):
        metainfos = [json.dumps(d.metainfo.get(key)) for d in (files, shards)]
        assert metainfos[0] == metainfos[1]
    for i in range(len(files)):
        found = []
        for dataset in (files, shards):
            np.random.seed(i)
            torch.manual_seed(i)
            found.append(dataset[i])
        assert same(*found), i


def test_files_are_what_webdataset_readers_expect(config, tmp_path):
    cfg = config('seg')
    index = json.loads(written(cfg, tmp_path).read_bytes())
    files = DATASETS.build(dict(cfg, pipeline=[]))
    names, contents = [], []
    for shard in index['shards']:
        path = tmp_path / shard['name']
        assert path.stat().st_size == shard['bytes'] <= 40_000
        assert hashlib.sha256(path.read_bytes()).hexdigest() == shard['sha256']
        with tarfile.open(path) as tar:
            names += tar.getnames()
            contents += [tar.extractfile(member).read() for member in tar]
    keys = [f'{i:09d}' for i in range(len(files))]
    assert names == [f'{k}.{kind}' for k in keys for kind in ('jpg', 'seg.png', 'json')]
    for i, info in enumerate(map(files.get_data_info, range(len(files)))):
        assert contents[3 * i] == Path(info['img_path']).read_bytes()
        assert contents[3 * i + 1] == Path(info['seg_map_path']).read_bytes()
        assert json.loads(contents[3 * i + 2])['reduce_zero_label'] is True
    assert index['samples'] == len(files) == sum(len(s['crc32']) for s in index['shards'])
    assert len(index['shards']) > 2


def test_an_interrupted_call_goes_on_and_ends_with_the_same_bytes(config, tmp_path):
    dataset = DATASETS.build(dict(config('det'), pipeline=[]))
    whole = write_shards(dataset, tmp_path / 'whole', 'train', 40_000)
    calls = Counter()

    class Killed(BaseException):
        pass

    def stop(at):
        def progress(done, total):
            calls[done] += 1
            if done == at:
                raise Killed

        return progress

    for at in (1, 9, 20):
        with pytest.raises(Killed):
            write_shards(dataset, tmp_path / 'cut', 'train', 40_000, stop(at))
        assert not (tmp_path / 'cut/train.json').exists()
        for path in (tmp_path / 'cut').glob('*.tar'):
            assert path.read_bytes() == (whole.parent / path.name).read_bytes()
    write_shards(dataset, tmp_path / 'cut', 'train', 40_000, stop(None))
    assert digests(tmp_path / 'cut') == digests(whole.parent)
    assert [*(tmp_path / 'cut').glob('.*')] == []
    assert calls[8] < 4  # what was complete was not written again
    before = calls.total()
    write_shards(dataset, tmp_path / 'cut', 'train', 40_000, stop(None))
    assert calls.total() == before


KILLED = """
import os, signal, sys
from mmengine.dataset import BaseDataset
from mmlinattn.datasets.shards import write_shards

class Images(BaseDataset):
    def load_data_list(self):
        return [dict(img_path=sys.argv[1], gt_label=i) for i in range(40)]

def progress(done, total):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

write_shards(Images(), sys.argv[2], 'train', 20_000, progress)
"""


def test_a_kill_leaves_nothing_behind_the_next_call(root, tmp_path):
    image = next((root / 'coco/train2017').iterdir())
    script = tmp_path / 'write.py'
    script.write_text(KILLED)
    out = tmp_path / 'out'

    def call(at: int, folder: Path = out) -> int:
        program = Program(script, [image, folder, at], tmp_path / 'log', [ROOT])
        return program.end()

    assert call(30) == -signal.SIGKILL
    begun = [p.name for p in out.glob('.train-*.tmp')]
    assert len(begun) == 1
    others = [out / '.train-2-000001.tar.1.tmp', out / '.val-000001.tar.1.tmp', out / 'train.txt']
    for other in others:
        other.write_bytes(b'of others')
    assert call(40) == -signal.SIGKILL and call(-1) == 0
    for other in others:
        other.unlink()
    assert call(-1, tmp_path / 'whole') == 0
    assert digests(out) == digests(tmp_path / 'whole')
    # Killed between the index and the end.
    (out / '.train.partial').mkdir()
    (out / '.train.json.7.tmp').write_bytes(b'{')
    assert call(-1) == 0
    assert [*out.glob('.*')] == []


def test_a_copy_of_another_size_is_another_set(config, tmp_path):
    cfg = config('cls')
    copied = tmp_path / 'copy'
    shutil.copytree(cfg['data_root'], copied)
    own = dict(cfg, data_root=str(copied))
    index = written(cfg, tmp_path / 'out')
    assert written(own, tmp_path / 'out') == index
    first = DATASETS.build(dict(own, pipeline=[])).get_data_info(0)['img_path']
    Path(first).write_bytes(Path(first).read_bytes() + b'\0')
    with pytest.raises(FileExistsError, match='exists, for another data set'):
        written(own, tmp_path / 'out')


def test_a_random_order_has_the_same_samples(config, tmp_path):
    """Neighbours in a data set, such as images of a class, would stay together otherwise."""
    cfg = config('cls')
    plain = read(written(cfg, tmp_path / 'plain'), cfg)
    mixed = read(written(cfg, tmp_path / 'mixed', seed=0), cfg)
    images = [
        [(i['img_path'].content, i['gt_label']) for i in map(d.get_data_info, range(len(d)))]
        for d in (plain, mixed)
    ]
    assert images[0] != images[1] and sorted(images[0]) == sorted(images[1])
    labels = [label for _, label in images[0]]
    assert labels == sorted(labels) != [label for _, label in images[1]]
    again = written(cfg, tmp_path / 'again', seed=0)
    assert digests(again.parent) == digests(tmp_path / 'mixed')
    with pytest.raises(FileExistsError):
        written(cfg, tmp_path / 'mixed', seed=1)


def test_shards_of_something_else_are_not_mixed(config, tmp_path):
    cfg = config('cls')
    index = written(cfg, tmp_path)
    with pytest.raises(FileExistsError, match=r'train\.json exists, for another'):
        written(cfg, tmp_path, 50_000)
    index.unlink()
    with pytest.raises(FileExistsError, match=r'train-000000\.tar is there already'):
        written(cfg, tmp_path)
    for options, message in [(dict(shard_bytes=0), 'shard_bytes must'), (dict(name='a/b'), 'name')]:
        options = dict(dict(folder=tmp_path, name='x'), **options)
        with pytest.raises(ValueError, match=message):
            write_shards(DATASETS.build(dict(cfg, pipeline=[])), **options)


def test_a_full_disk_leaves_nothing_that_looks_complete(config, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(write, '_write_shard', full)
        with pytest.raises(WriteError, match='cannot be written: No space left'):
            written(config('cls'), tmp_path)
    assert [*tmp_path.glob('*.*')] == [tmp_path / '.train.partial']
    assert written(config('cls'), tmp_path).exists()


def test_records_that_cannot_be_cached_blocks(tmp_path):
    class Odd(BaseDataset):
        record = dict()

        def load_data_list(self):
            return [self.record]

    for record, message in [
        (dict(img=np.zeros(3)), 'only images in files'),
        (dict(img_path=__file__), r'\.py: images must be one of'),
        (dict(img_path=__file__, depth_map_path='b.png'), 'must not have depth_map_path'),
        (dict(img_path=__file__, thing=object()), 'object cannot be kept'),
    ]:
        Odd.record = record
        with pytest.raises((ValueError, TypeError), match=message):
            write_shards(Odd(serialize_data=False), tmp_path / message.strip('\\.')[:4], 'odd')


def test_damage_is_seen(config, tmp_path):
    cfg = config('seg')
    index = written(cfg, tmp_path)
    shard = tmp_path / 'train-000001.tar'
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    dataset = read(index, cfg)
    bad = []
    for i in range(len(dataset)):
        try:
            dataset.get_data_info(i)
        except DamagedSample as error:
            bad.append(i)
            assert 'train-000001.tar: the sample at byte' in str(error)
            with pytest.raises(DamagedSample, match='its checksum differs'):
                dataset[i]  # where it is loaded
    assert len(bad) == 1
    dataset.pipeline.transforms[:] = [lambda results: results]
    info = dataset[bad[0]]
    assert info['sample_idx'] == bad[0]
    for sent in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
        with pytest.raises(DamagedSample, match=r'train-000001\.tar: .* checksum differs'):
            fileio.get(sent['img_path'])
    shard.write_bytes(content[:8000])
    with pytest.raises(OSError, match=r'train-000001\.tar ends before byte'):
        [read(index, cfg).get_data_info(i) for i in range(len(dataset))]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r'1 of the .* not there, such as train-000001'):
        read(index, cfg)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda i: i.update(format='x'), 'is not an index of shards'),
        (lambda i: i.update(version=2), 'has version 2'),
        (lambda i: i.update(samples=1), 'not the sum of its shards'),
        (lambda i: i['shards'][0].update(name='../../etc/passwd'), 'name is'),
        (lambda i: i['shards'][0]['starts'].pop(), 'do not fit'),
        (lambda i: i['shards'][0]['starts'].__setitem__(1, 0), 'do not ascend'),
    ],
)
def test_an_index_that_contradicts_itself(config, tmp_path, change, message):
    cfg = config('cls')
    index = written(cfg, tmp_path)
    content = json.loads(index.read_bytes())
    change(content)
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read(index, cfg)


def test_nothing_is_unpickled(config, tmp_path):
    """As WebDataset's decoders do with these names."""
    index = written(config('cls'), tmp_path)
    content = json.loads(index.read_bytes())
    info = tarfile.TarInfo('000000000.pyd')
    data = pickle.dumps(dict(a=1))
    info.size = len(data)
    block = (info.tobuf(tarfile.USTAR_FORMAT) + data).ljust(1024, b'\0')
    (tmp_path / 'train-000000.tar').write_bytes(block + bytes(1024))
    shard = content['shards'][0]
    shard.update(starts=[0, 1024], crc32=[zlib.crc32(block)])
    content.update(shards=[shard], samples=1)
    index.write_text(json.dumps(content))
    with pytest.raises(DamagedSample, match=r'tar: .* 000000000\.pyd has an unknown suffix'):
        read(index, config('cls')).get_data_info(0)


REGULAR = tarfile.REGTYPE


@pytest.mark.parametrize(
    'members, why',
    [
        ([('0.jpg', b'', tarfile.SYMTYPE, '0.jpg')], '0.jpg is not a regular file'),
        ([('0.jpg', b'', tarfile.SYMTYPE, '/etc/passwd')], '0.jpg is not a regular file'),
        ([('0.jpg', b'', tarfile.LNKTYPE, '0.jpg')], '0.jpg is not a regular file'),
        ([('0.jpg', b'', tarfile.DIRTYPE, '')], '0.jpg/? is not a regular file'),
        ([('0.jpg', b'', tarfile.FIFOTYPE, '')], '0.jpg is not a regular file'),
        ([('0.jpg', b'', tarfile.CONTTYPE, '')], '0.jpg is not a regular file'),
        ([('0.json', b'[1]', REGULAR, '')], '0.json is a list, not a dict'),
        ([('0.json', b'{' * 10**5, REGULAR, '')], 'cannot be read'),
        ([('0.json', b'{"img_path": "/etc/passwd"}', REGULAR, '')], 'must not have img_path'),
        ([('0.json', b'{"seg_map_path": "http://h"}', REGULAR, '')], 'not have seg_map_path'),
        ([('0.json', b'{"sample_idx": 7}', REGULAR, '')], 'must not have sample_idx'),
        ([('0.json', b'{"label_map": 7}', REGULAR, '')], 'cannot be read'),
        ([('0.cls', b'cat', REGULAR, '')], 'cannot be read'),
        ([('0.cls', b'1', REGULAR, '')], 'it has no image'),
    ],
)
def test_a_hostile_shard_names_nothing_else(tmp_path, members, why):
    data = b''
    for name, content, kind, target in [('1.jpg', b'x', REGULAR, '')] * (why[:2] != 'it') + members:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = len(content), kind, target
        data += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    (tmp_path / 't.tar').write_bytes(data + bytes(1024))
    shard = dict(name='t.tar', starts=[0, len(data)], crc32=[zlib.crc32(data)])
    index = dict(format='mmlinattn-shards', version=1, metainfo={}, samples=1, shards=[shard])
    (tmp_path / 't.json').write_text(json.dumps(index))
    with pytest.raises(DamagedSample, match=rf'/t\.tar: the sample at byte 0 .*{why}'):
        read(tmp_path / 't.json', dict(pipeline=[])).get_data_info(0)


def test_addresses_are_enough_to_read_again(config, tmp_path):
    cfg = config('seg')
    dataset = read(written(cfg, tmp_path), cfg)
    info = dataset.get_data_info(5)
    for key in ('img_path', 'seg_map_path'):
        for sent in (pickle.loads(pickle.dumps(info[key])), copy.deepcopy(info[key])):
            assert type(sent) is str
            assert fileio.get(sent) == fileio.get(info[key]) == info[key].content
    assert fileio.exists(str(info['img_path']))
    assert str(info['img_path']).endswith('/000000005.jpg')
    with pytest.raises(ValueError, match='is not the URI of a file in a shard'):
        fileio.get('shard://x')


def test_the_data_checks_read_them(config, root, tmp_path):
    cfg = shrunk(FAMILIES['seg'], root)
    index = written(cfg.train_dataloader.dataset.to_dict(), tmp_path)
    cfg.train_dataloader.dataset = dict(
        type='ShardDataset', data_root=str(tmp_path), ann_file=index.name, pipeline=[]
    )
    report = audit_dataset(cfg, ['train'])
    assert report.images == dict(train=COUNT) and not report.counts()
    cfg.train_dataloader.dataset.backend_args = dict(backend='local')
    report = audit_dataset(cfg, ['train'], workers=2)
    assert report.images == dict(train=COUNT) and not report.counts()
    damage(index, 0, 5)
    assert audit_dataset(cfg, ['train']).counts() == {('train', 'unreadable'): 2}


def damage(index: Path, *numbers: int) -> None:
    """Changes a byte of samples of the first shard."""
    shard = json.loads(index.read_bytes())['shards'][0]
    content = bytearray((index.parent / shard['name']).read_bytes())
    for i in numbers:
        content[shard['starts'][i] + 1000] ^= 1
    (index.parent / shard['name']).write_bytes(content)


@pytest.mark.parametrize('arguments', [None, dict(backend='local')])
def test_training_reads_them_and_passes_over_damaged_samples(root, tmp_path, arguments):
    cfg = shrunk(FAMILIES['seg'], root).train_dataloader
    init_default_scope('mmseg')
    index = written(cfg.dataset.to_dict(), tmp_path)
    pipeline = [
        dict(type='LoadImageFromFile', backend_args=arguments),
        dict(type='LoadAnnotations', backend_args=arguments),
    ]
    cfg.dataset = dict(
        type='ShardDataset', data_root=str(tmp_path), ann_file=index.name, pipeline=pipeline,
        backend_args=arguments,
    )  # fmt: skip
    cfg.sampler = dict(type='DefaultSampler', shuffle=False)
    cfg.update(num_workers=0, persistent_workers=False)
    dataset = PluginRunner.build_dataloader(cfg, seed=0).dataset
    assert all(dataset[i]['img'].shape == (64, 64, 3) for i in range(COUNT))
    damage(index, 0, 2)
    loader = PluginRunner.build_dataloader(dict(cfg, skip_corrupt=0.5), seed=0)
    assert len([loader.dataset[i] for i in range(COUNT)]) == COUNT
    assert loader.skipped_images.flags.nonzero().flatten().tolist() == [0, 2]
    what = r'DamagedSample: .*/train-000000\.tar: the sample at byte \d+ .* its checksum differs'
    assert re.search(what, loader.skipped_images.describe(2))
    dataset = PluginRunner.build_dataloader(cfg, seed=0).dataset
    with pytest.raises(DataError, match='train-000000.tar.* cannot be loaded: .* checksum differs'):
        dataset[2]


# The order


class Blocks(ShardDataset):
    """Numbers in blocks of uneven size, without files."""

    def __init__(self, count: int, kept: int = 3) -> None:
        rng = np.random.default_rng(count)
        self.numbers = np.sort(rng.integers(0, max(count // 4, 1), count))
        self.blocks, self.ann_file = kept, 'numbers'

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> int:
        return i

    def block_numbers(self) -> np.ndarray:
        return self.numbers


@pytest.fixture
def sampler(monkeypatch):
    """sampler(dataset, rank, of, **options)"""

    def make(dataset, rank=0, of=1, **options) -> ShardSampler:
        monkeypatch.setattr(sampling, 'get_dist_info', lambda: (rank, of))
        return ShardSampler(dataset, seed=5, **options)

    return make


def loader(dataset, order, batch=3, workers=0) -> DataLoader:
    return DataLoader(dataset, batch, sampler=order, num_workers=workers, collate_fn=pseudo_collate)


@pytest.mark.filterwarnings('ignore:This DataLoader will create')
@pytest.mark.parametrize('of', [1, 2, 3, 4])
@pytest.mark.parametrize('workers', [0, 1, 2, 3])
def test_processes_and_workers_have_each_sample_once(sampler, of, workers):
    dataset = Blocks(41)
    seen, lengths = Counter(), []
    for rank in range(of):
        order = sampler(dataset, rank, of, round_up=False, batch_size=3, num_workers=workers)
        found = [i for batch in loader(dataset, order, workers=workers) for i in batch]
        lengths.append(len(found))
        assert len(found) == len(order)
        seen.update(found)
    assert seen == Counter(range(41))
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('count', [1, 2, 7, 40, 41])
def test_sizes_that_do_not_divide(sampler, count, shuffle):
    dataset = Blocks(count)
    for of in (1, 2, 3, 4):
        for streams in (1, 2, 3):
            options = dict(batch_size=2, num_workers=streams, shuffle=shuffle)
            plain = [[*sampler(dataset, r, of, round_up=False, **options)] for r in range(of)]
            assert sorted(chain(*plain)) == [*range(count)]
            even = [[*sampler(dataset, r, of, **options)] for r in range(of)]
            assert {len(part) for part in even} == {-(-count // of)}
            # What MMEngine keeps of the results of all processes is each sample once.
            merged = [i for row in zip(*even) for i in row][:count]
            assert sorted(merged) == [*range(count)]


def test_epochs_and_seeds_differ_and_repeat(sampler):
    dataset = Blocks(41)
    order = sampler(dataset)
    first = [*order]
    assert first == [*order] != [*range(41)]
    order.set_epoch(1)
    assert [*order] not in (first, [*range(41)])
    assert [*sampler(dataset, shuffle=False)] == [*range(41)]
    assert [*ShardSampler(dataset, seed=6)] != first


def test_an_infinite_order_has_each_sample_once_an_epoch_and_skips(sampler):
    dataset = Blocks(41)
    parts = []
    for rank in range(3):
        order = sampler(dataset, rank, 3, infinite=True, batch_size=4, num_workers=2)
        own = order.own
        stream = iter(order)
        parts.append([next(stream) for _ in range(3 * own)])
        for skipped in (1, own - 1, own, 2 * own + 3):
            order.skip(skipped)
            stream = iter(order)
            rest = parts[-1][skipped:]
            assert [next(stream) for _ in rest] == rest
    for epoch in range(3):
        of_all = [part[epoch * len(part) // 3 : (epoch + 1) * len(part) // 3] for part in parts]
        assert sorted(chain(*of_all)) == [*range(41)]


@pytest.mark.parametrize('workers', [0, 2])
def test_the_rest_of_an_epoch_is_what_is_still_due(sampler, workers):
    dataset = Blocks(41)
    order = sampler(dataset, 1, 2, batch_size=3, num_workers=workers)
    whole = [*loader(dataset, order, workers=workers)]
    for start in (1, 2, 6):
        again = sampler(dataset, 1, 2, batch_size=3, num_workers=workers)
        assert [*_skip_batches(loader(dataset, again, workers=workers), start)] == whole[start:]


@pytest.mark.parametrize('workers', [1, 2, 3])
def test_a_worker_reads_each_of_its_blocks_once_and_few_are_shared(
    config, tmp_path, sampler, monkeypatch, workers
):
    cfg = config('seg')
    index = written(cfg, tmp_path)
    # Five samples or so a block.
    dataset = read(index, dict(pipeline=[]), block_bytes=12_000, blocks=2)
    count = len({*dataset.block_numbers()})
    assert count > 6
    batches = [
        *loader(dataset, sampler(dataset, batch_size=2, num_workers=workers), 2).batch_sampler
    ]
    reads, real = Counter(), reading.read_range

    def counted(path, start, size, backend_args=None):
        reads[worker, path, start] += 1
        return real(path, start, size, backend_args)

    monkeypatch.setattr(reading, 'read_range', counted)
    for worker in range(workers):
        own = pickle.loads(pickle.dumps(dataset))
        for i in chain(*batches[worker::workers]):
            own.get_data_info(i)
            assert len(own._cached_blocks) <= 2
    assert max(reads.values()) == 1
    assert count <= len(reads) <= count + workers - 1


def test_data_sets_without_blocks(root, config):
    with pytest.raises(TypeError, match='must be a ShardDataset, got list'):
        ShardSampler([1, 2])
    with pytest.raises(ValueError, match='no sample'):
        ShardSampler(Blocks(0))
    with pytest.raises(ValueError, match='batch_size must be a positive'):
        ShardSampler(Blocks(3), batch_size=0)
    with pytest.raises(ValueError, match='only with infinite=True'):
        ShardSampler(Blocks(3), seed=0).skip(1)


def test_backend_args_of_the_data_set_may_be_those_of_its_transforms(config, tmp_path):
    index = written(config('seg'), tmp_path)
    images = []
    for backend_args in (None, dict(backend='local'), dict(backend='s3'), dict(attempts=2)):
        transform = dict(type='LoadImageFromFile', backend_args=backend_args)
        images.append(read(index, dict(pipeline=[transform]))[3]['img'])
        assert np.array_equal(images[0], images[-1])
    transform['backend_args'] = dict(backend='memcached', server_list_cfg='', client_cfg='')
    with pytest.raises(ValueError, match='MemcachedBackend cannot read files in shards'):
        read(index, dict(pipeline=[transform]))


def test_shards_are_read_from_an_object_store(config, tmp_path, bucket):
    cfg = config('det')
    index = written(cfg, tmp_path)
    upload(tmp_path, f'{bucket}/coco')
    local = read(index, dict(pipeline=[]))
    remote = DATASETS.build(
        dict(type='ShardDataset', data_root=f'{bucket}/coco', ann_file='train.json')
    )
    for i in (0, 7, COUNT - 1):
        a, b = local.get_data_info(i), remote.get_data_info(i)
        assert a['img_path'].content == b['img_path'].content == fileio.get(str(b['img_path']))
        assert a['instances'] == b['instances']
    assert str(b['img_path']).startswith('shard://s3%3A//')


def test_addresses_are_read_as_their_data_set_is(config, tmp_path, bucket, monkeypatch):
    """Without credentials, from a server that only the data set's arguments name."""
    cfg = config('seg')
    index = written(cfg, tmp_path)
    upload(tmp_path, f'{bucket}/open')
    endpoint = os.environ['AWS_ENDPOINT_URL']
    arguments = dict(backend='s3', endpoint_url=endpoint)
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
    dataset = DATASETS.build(
        dict(
            type='ShardDataset', data_root=f'{bucket}/open', ann_file=index.name,
            backend_args=arguments,
        )
    )  # fmt: skip
    info = dataset.get_data_info(3)
    assert fileio.get(str(info['img_path'])) == info['img_path'].content
    assert fileio.exists(str(info['img_path']))
    state = pickle.dumps(dataset)
    monkeypatch.setattr(
        TarMemberBackend, 'shard_backend_args', {}
    )  # as in a process that was spawned
    pickle.loads(state)
    assert fileio.get(str(info['seg_map_path'])) == info['seg_map_path'].content

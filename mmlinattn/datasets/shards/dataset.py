"""MMEngine data set that reads shards."""

import io
import json
import tarfile
import zlib
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Set

import numpy as np
from mmengine import fileio
from mmengine.dataset import BaseDataset, force_full_init
from mmengine.fileio.backends.registry_utils import backends
from mmengine.registry import DATASETS

from ...utils import check_integer
from ..file_backends import HTTPFileBackend, RegularFileBackend, StoreError
from ..file_backends.base import RemoteFileBackend
from ..file_backends.tar_member import (
    DamagedSample,
    DamagedTarMember,
    TarMember,
    TarMemberBackend,
    read_range,
)
from .index import IMAGES, LABEL, RECORD, SEG_MAP, check_record, read_index, with_label_map

REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)  # excludes links and sparse files


@DATASETS.register_module()
class ShardDataset(BaseDataset):
    """Data set of shards that :func:`.write.write_shards` has written.

    The records are those of the original data set, so its pipelines work unchanged. Shards are
    read in blocks of many samples, and some blocks are cached. With
    :class:`.sampler.ShardSampler` each block is read once per epoch. The checksum of each sample
    is verified. Nothing is unpickled.

    Args:
        ann_file: the index, such as ``'train.json'``; the shards are in the same folder.
        data_root: folder or URL of both, such as ``'s3://bucket/coco'``.
        block_bytes: maximum size of a block; a larger sample is a block of its own.
        blocks: number of blocks cached in memory by each data-loader worker. The sampler shuffles
            within this many blocks: fewer take less memory, more shuffle better.
        backend_args: arguments of MMEngine's file backend for index and shards; by default the
            URL determines it. Transforms need none, because their files are already in memory.
        others: see MMEngine's ``BaseDataset``. ``metainfo`` overrides that of the index.

    Raises:
        ValueError: arguments out of range, an invalid index, or a transform with a file backend
            that cannot read files in shards.
        DamagedSample: on ``get_data_info``, the bytes of a sample cannot be read, have changed, or
            are not a sample. On ``dataset[i]`` the transform that loads the image raises it, as
            for a damaged file.
        StoreError: a store cannot be reached or denies access.
        OSError: the index cannot be read.

    Example::

        dict(type='ShardDataset', data_root='s3://bucket/coco', ann_file='train.json',
             pipeline=train_pipeline)
    """

    def __init__(
        self,
        ann_file: str,
        data_root: str = '',
        block_bytes: int = 8 * 2**20,
        blocks: int = 16,
        backend_args: Optional[dict] = None,
        **kwargs: Any,
    ) -> None:
        self.block_bytes = check_integer('block_bytes', block_bytes)
        self.blocks = check_integer('blocks', blocks)
        self.backend_args = backend_args
        self._cached_blocks: OrderedDict = OrderedDict()
        super().__init__(ann_file=ann_file, data_root=data_root, data_prefix={}, **kwargs)
        for transform in self.pipeline.transforms:
            _check_backend(transform)

    def __getstate__(self) -> dict:
        return {**self.__dict__, '_cached_blocks': OrderedDict()}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        # In a new process TarMemberBackend knows no shards yet.
        for path, _, _ in self.__dict__.get('_block_ranges', ()):
            TarMemberBackend.register(path, self.backend_args)

    def load_data_list(self) -> List[dict]:
        index = read_index(self.ann_file, self.backend_args)
        metainfo = dict(index['metainfo'])
        if 'classes' in metainfo:
            metainfo['classes'] = tuple(metainfo['classes'])
        for key, value in with_label_map(metainfo).items():
            self._metainfo.setdefault(key, value)
        folder = self.ann_file.rpartition('/')[0]
        self._check_shards(folder, {shard['name'] for shard in index['shards']})
        self._block_ranges, records = [], []
        for shard in index['shards']:
            path = fileio.join_path(folder, shard['name'], backend_args=self.backend_args)
            TarMemberBackend.register(path, self.backend_args)
            begin = None
            for start, stop, crc32 in zip(shard['starts'], shard['starts'][1:], shard['crc32']):
                if begin is None or stop - begin > self.block_bytes:
                    begin = start
                    self._block_ranges.append((path, begin, stop))
                self._block_ranges[-1] = (path, begin, stop)
                block = len(self._block_ranges) - 1
                records.append(dict(block=block, start=start, stop=stop, crc32=crc32))
        return records

    def _check_shards(self, folder: str, names: Set[str]) -> None:
        """Raise FileNotFoundError if a shard is missing, before hours of training."""
        backend = fileio.get_file_backend(folder, backend_args=self.backend_args)
        if isinstance(backend, HTTPFileBackend):
            return  # web servers cannot list folders
        missing = sorted(names - {*backend.list_dir_or_file(folder or '.', list_dir=False)})
        if missing:
            raise FileNotFoundError(
                f'{folder}: {len(missing)} of the {len(names)} shards of {self.ann_file} are not '
                f'there, such as {missing[0]}'
            )

    def block_numbers(self) -> np.ndarray:
        """Return the block number of each sample, (len,) int64."""
        self.full_init()
        location = super().get_data_info
        return np.array([location(i)['block'] for i in range(len(self))], np.int64)

    @force_full_init
    def get_data_info(self, idx: int) -> dict:
        """Return the record of a sample, with the content of its files."""
        location = super().get_data_info(idx)
        path = self._block_ranges[location['block']][0]
        try:
            info = self._read_sample(path, location)
        except StoreError:  # does not mean that the sample is damaged
            raise
        except Exception as error:  # the content of a damaged shard can raise any error
            where = f'{path}: the sample at byte {location["start"]}'
            raise DamagedSample(f'{where} cannot be read: {error}') from error
        return dict(info, sample_idx=location['sample_idx'])

    def prepare_data(self, idx: int) -> Any:
        """Apply the pipeline to a sample, also to a damaged one, whose image then fails to load."""
        try:
            info = self.get_data_info(idx)
        except DamagedSample as error:
            location = super().get_data_info(idx)
            path, start = self._block_ranges[location['block']][0], location['start']
            image = DamagedTarMember(path, start, location['stop'] - start, error)
            info = dict(img_path=image, sample_idx=location['sample_idx'])
        return self.pipeline(info)

    def _read_sample(self, path: str, location: dict) -> dict:
        begin = self._block_ranges[location['block']][1]
        block = self._read_block(location['block'])
        sample = block[location['start'] - begin : location['stop'] - begin]
        if zlib.crc32(sample) != location['crc32']:
            raise ValueError('its checksum differs')
        info: Dict[str, Any] = {}
        with tarfile.open(fileobj=io.BytesIO(sample), mode='r:') as members:
            for member in members:
                if member.type not in REGULAR_TYPES or member.issparse():
                    raise ValueError(f'{member.name} is not a regular file')
                file = members.extractfile(member)
                assert file is not None  # a regular file
                content = file.read()
                kind = member.name.partition('.')[2]
                start = location['start'] + member.offset_data
                if kind == RECORD:
                    record = json.loads(content)
                    if not isinstance(record, dict):
                        raise ValueError(f'{member.name} is a {type(record).__name__}, not a dict')
                    check_record(record)
                    info.update(with_label_map(record))
                elif kind == LABEL:
                    info['gt_label'] = int(content)
                elif kind == SEG_MAP:
                    info['seg_map_path'] = TarMember(path, start, member.name, content)
                elif kind in IMAGES:
                    info['img_path'] = TarMember(path, start, member.name, content)
                else:
                    raise ValueError(f'{member.name} has an unknown suffix')
        if 'img_path' not in info:
            raise ValueError('it has no image')
        return info

    def _read_block(self, number: int) -> bytes:
        if number not in self._cached_blocks:
            path, begin, end = self._block_ranges[number]
            while len(self._cached_blocks) >= self.blocks:
                self._cached_blocks.popitem(last=False)
            self._cached_blocks[number] = read_range(path, begin, end - begin, self.backend_args)
        self._cached_blocks.move_to_end(number)
        return self._cached_blocks[number]


def _check_backend(transform: Any) -> None:
    """Raise ValueError if a transform names a file backend that is not of this package."""
    backend_args = getattr(transform, 'backend_args', None) or {}
    backend = backends.get(backend_args.get('backend'), RemoteFileBackend)
    if not issubclass(backend, (RemoteFileBackend, RegularFileBackend, TarMemberBackend)):
        raise ValueError(
            f'{type(transform).__name__} has backend_args={backend_args}, but {backend.__name__} '
            'cannot read files in shards; give backend_args to the data set only'
        )

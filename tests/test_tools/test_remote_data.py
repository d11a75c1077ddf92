"""Trainings whose data is elsewhere, or in shards, against the same from files on the disk."""

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from mmlinattn.datasets.file_backends.s3 import S3FileBackend
from mmlinattn.engine import seed_everything
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk
from tests.object_store import KEY_ID, SECRET, upload

from .conftest import CONFIGS

pytestmark = pytest.mark.slow

SMALL = [
    'model.backbone.arch.embed_dims=(16,16,16,16)',
    'model.backbone.arch.depths=(1,1,1,1)',
    'model.backbone.arch.num_heads=(1,1,1,1)',
    'model.neck.in_channels=[16,16,16,16]',
]


def losses(work: Path) -> list:
    (path,) = work.glob('*/vis_data/scalars.json')
    records = map(json.loads, path.read_text().splitlines())
    return [record['loss'] for record in records if 'loss' in record]


def weights(path: Path) -> dict:
    return torch.load(path, weights_only=False)['state_dict']


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_training_from_an_object_store(root, run, options, tmp_path, shapes_root, bucket):
    upload(shapes_root / 'ade', f'{bucket}/ade')
    found = []
    for place in (shapes_root / 'ade', f'{bucket}/ade'):
        cfg = [*options('seg', 3, workers=1), *SMALL]
        for split in ('train', 'val', 'test'):
            cfg.append(f'{split}_dataloader.dataset.data_root={place}')
        work = tmp_path / str(len(found))
        run('train', root / CONFIGS['seg'], '--work-dir', work, '--cfg-options', *cfg)
        found.append(losses(work))
    assert len(found[0]) == 3 and found[0] == found[1]
    texts = [p.read_bytes() for p in work.rglob('*') if p.is_file()]
    assert any(bucket.encode() in text for text in texts)
    assert not any(secret.encode() in text for text in texts for secret in (KEY_ID, SECRET))


def test_training_from_shards_resumes_at_its_place(
    root, run, options, tmp_path, shapes_root, bucket, monkeypatch
):
    """In the second epoch, with another number of workers, and from an object store."""
    run(
        'to-shards', root / CONFIGS['seg'], tmp_path / 'shards',
        '--splits', 'train', '--shard-mib', '1',
        '--cfg-options', f'train_dataloader.dataset.data_root={shapes_root}/ade',
    )  # fmt: skip
    upload(tmp_path / 'shards', f'{bucket}/shapes')

    def train(place, work, *arguments, workers=2):
        cfg = [
            *options('seg', 7, workers=workers),
            f'train_dataloader.dataset.data_root={place}',
            'train_dataloader.dataset.block_bytes=20_000',
            'train_dataloader.dataset.blocks=2',
            'train_dataloader.sampler.batch_size=4',
            'train_dataloader.sampler.num_workers=2',
        ]
        config = root / 'configs/quickstart/semantic-fpn_ravlt-nano_shapes-shards.py'
        extra = ['default_hooks.checkpoint.interval=1', 'default_hooks.checkpoint.max_keep_ckpts=3']
        run('train', config, '--work-dir', work, *arguments, '--cfg-options', *cfg, *SMALL, *extra)

    train(tmp_path / 'shards', tmp_path / 'whole')
    asked = []
    real = S3FileBackend.get_range
    monkeypatch.setattr(
        S3FileBackend, 'get_range', lambda self, *args: asked.append(args) or real(self, *args)
    )
    begun = tmp_path / 'whole/iter_5.pth'
    train(f'{bucket}/shapes', tmp_path / 'part', '--resume', begun, workers=0)
    assert asked
    assert equal(*(weights(tmp_path / name / 'iter_7.pth') for name in ('whole', 'part')))


def test_a_detector_reads_from_a_web_server(shapes_root):
    class Quiet(SimpleHTTPRequestHandler):
        log_message = staticmethod(lambda *args: None)

    handler = partial(Quiet, directory=str(shapes_root))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        cfg = shrunk('ravlt-mask-rcnn', shapes_root).train_dataloader
        files = PluginRunner.build_dataloader(cfg, seed=0).dataset
        cfg.dataset.data_root = f'http://127.0.0.1:{server.server_port}/coco/'
        served = PluginRunner.build_dataloader(cfg, seed=0).dataset
        assert len(served) == len(files) == 16
        for i in (0, 15):
            seed_everything(i)
            a = files[i]
            seed_everything(i)
            b = served[i]
            assert a['data_samples'].img_path != b['data_samples'].img_path
            assert torch.equal(a['inputs'], b['inputs'])
        server.shutdown()


def test_a_key_in_a_config_is_refused_before_anything_is_written(root, run, options, tmp_path):
    work = tmp_path / 'work'
    option = 'train_dataloader.dataset.backend_args.secret_access_key=hidden'
    with pytest.raises(ValueError, match=r'backend_args\.secret_access_key of the con') as error:
        run('train', root / CONFIGS['seg'], '--work-dir', work, '--cfg-options', option)
    assert 'hidden' not in str(error.value)
    assert not work.exists()

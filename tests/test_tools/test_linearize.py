"""``mmlinattn linearize`` on a small segmentor: stages, resuming, processes, bad input."""

import json
import shutil
import signal

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS

from mmlinattn.apis.pipeline import test_dataset as dataset_of_test
from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import quiet
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.linearize import Options
from mmlinattn.linearize.images import check_readable, image_pipeline, training_images
from mmlinattn.utils.errors import InputError

from ..programs import Program
from ..sizes import LONG
from .conftest import CONFIGS, FOLDERS

CONFIG = """
_base_ = {base!r}
model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch=dict(embed_dims=16, num_heads=2, depth=3, patch_size=8),
        img_size=64,
        attn_cfg='SoftmaxAttention',
        out_indices=(0, 2),
    ),
    neck=dict(_delete_=True, type='mmseg.FPN', in_channels=[16, 16], out_channels=8, num_outs=2),
    decode_head=dict(
        _delete_=True,
        type='FCNHead', in_channels=8, in_index=1, channels=8, num_convs=1, num_classes=6,
    ),
)
"""


# The class token of a ViT is its output.
CLASSIFIER = """
model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch=dict(embed_dims=16, num_heads=2, depth=2, patch_size=16),
        img_size=64,
        attn_cfg='SoftmaxAttention',
        out_type='cls_token',
    ),
    neck=None,
    head=dict(in_channels=16),
)
"""


# Its softmax is in the encoder of the detector, behind a backbone of MMDetection.
SMCA = """
_base_ = {base!r}
model = dict(
    num_queries=10,
    backbone=dict(base_channels=4, stem_channels=4),
    neck=dict(in_channels=[16], out_channels=16),
    encoder=dict(num_layers=3, layer_cfg=dict(embed_dims=16, num_heads=2, dropout=0.1)),
    decoder=dict(num_layers=1, layer_cfg=dict(embed_dims=16, num_heads=2)),
    positional_encoding=dict(num_feats=8),
    bbox_head=dict(embed_dims=16),
)
val_evaluator = dict(ann_file='{data}/annotations/instances_val2017.json')
test_evaluator = val_evaluator
"""


def write_teacher(folder, text, prefix='') -> tuple:
    """Write a config and a checkpoint of random weights; return both."""
    path, checkpoint = folder / 'teacher.py', folder / 'teacher.pth'
    path.write_text(text)
    cfg = load_config(str(path))
    torch.manual_seed(0)
    with quiet():
        model = MODELS.build(cfg.model)
        model.init_weights()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    state = {prefix + name: value for name, value in model.state_dict().items()}
    save_checkpoint(checkpoint, state, dict(dataset_meta=dict(classes=['a'] * 6)))
    return path, checkpoint


@pytest.fixture(scope='module')
def teacher(root, shapes_root, tmp_path_factory):
    """Config, checkpoint and images of a segmentor with softmax attention and random weights."""
    text = CONFIG.format(base=str(root / CONFIGS['seg']))
    for split in ('train', 'val', 'test'):
        text += f"{split}_dataloader = dict(dataset=dict(data_root='{shapes_root}/ade'))\n"
    found = write_teacher(tmp_path_factory.mktemp('teacher'), text, 'module.')  # of DDP
    return *found, shapes_root / 'ade/images/training'


@pytest.fixture(scope='module')
def smca(root, shapes_root, tmp_path_factory):
    """Config, checkpoint and images of different sizes of an SMCA with random weights."""
    folder, data = tmp_path_factory.mktemp('smca'), shapes_root / 'coco'
    text = SMCA.format(base=str(root / 'configs/smca/smca_nano_shapes.py'), data=data)
    for split in ('train', 'val', 'test'):
        text += f"{split}_dataloader = dict(dataset=dict(data_root='{data}/'))\n"
    images = folder / 'images'
    images.mkdir()
    for i, path in enumerate(sorted((data / 'train2017').iterdir())[:8]):
        cv2.imwrite(
            str(images / path.name), cv2.imread(str(path))[: 64 - 8 * (i % 3), 16 * (i % 2) :]
        )
    return *write_teacher(folder, text), images


def options(teacher, out, a=2, b=2, *more) -> list:
    path, checkpoint, images = teacher
    sizes = ['--iters-a', a, '--iters-b', b, '--batch-size', 4]
    return [*map(str, [path, checkpoint, '--images', images, '--out', out, *sizes]), *more]


def weights(path) -> dict:
    state = torch.load(path, weights_only=False)['state_dict']
    return {name.removeprefix('module.'): value for name, value in state.items()}


def check_distillation(out, checkpoint, part, stages) -> dict:
    """Check the report and the weights of a run in ``out``; return the report.

    Only attentions change in A, only ``part`` in B; the rest is the teacher's, bit for bit.
    """
    report = json.loads((out / 'report.json').read_text())
    assert report['kept'] == [2] and [*report['scores']] == stages
    swap, after = report['errors']['swap'], report['errors']['a']
    assert all(after[name] < swap[name] for name in swap)
    files = [checkpoint, *(out / f'{stage}.pth' for stage in ('swap', 'a', 'b'))]
    before, swapped, a, b = map(weights, files)
    assert b.keys() == swapped.keys()
    rest = [name for name in b if not name.startswith(f'{part}.')]
    assert len(rest) > 5 and all(torch.equal(b[name], before[name]) for name in rest)
    changed = [name for name in a if not torch.equal(a[name], swapped[name])]
    assert changed and all(name.startswith(tuple(f'{n}.' for n in swap)) for name in changed)
    assert any(not torch.equal(b[name], a[name]) for name in {*b} - {*rest} - {*changed})
    return report


def test_all_stages(teacher, run, tmp_path, capsys):
    out = tmp_path / 'out'
    more = ['--keep-softmax', 'last1', '--finetune', '--crop-size', '48', '48']
    more += ['--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2']
    arguments = options(teacher, out, 2, 2, *more)
    run('linearize', *arguments)
    assert 'Direct swap: ' in capsys.readouterr().out
    report = check_distillation(out, teacher[1], 'backbone', ['teacher', 'swap', 'a', 'b', 'c'])
    assert (report['replaced'], report['images']) == ([0, 1], 16)
    assert all('mIoU' in scores for scores in report['scores'].values())
    assert [*report['errors']['swap']] == ['backbone.layers.0.attn', 'backbone.layers.1.attn']
    page, b = (out / 'report.md').read_text(), weights(out / 'b.pth')
    assert '| direct swap |' in page
    # Each phase starts from the one before.
    for phase, start in (('a', 'swap'), ('b', 'a'), ('c', 'b')):
        (trained,) = (out / f'phase_{phase}').glob('2*/vis_data/config.py')
        assert f"'{out / start}.pth'" in trained.read_text()
    # The result is an ordinary config and checkpoint.
    work = tmp_path / 'test'
    run('test', out / 'config.py', out / 'model.pth', '--work-dir', work)
    scores = json.loads(next(work.glob('*/*.json')).read_text())
    assert scores['mIoU'] == pytest.approx(report['scores']['c']['mIoU'])
    moved = out.rename(out.with_name('moved'))
    assert Config.fromfile(moved / 'config.py').load_from == str(moved / 'model.pth')
    (moved / 'b.pth').unlink()  # a kill came before it
    (moved / '.1-a.tmp').touch()  # of a killed run
    run('linearize', *options(teacher, moved, 2, 2, *more), '--resume')
    assert not [*moved.glob('.*')]
    again = weights(moved / 'b.pth')
    assert all(torch.equal(again[name], b[name]) for name in b)
    moved.rename(out)
    # Done: nothing is trained or scored again.
    (out / 'report.md').unlink()
    run('linearize', *arguments, '--resume')
    assert (out / 'report.md').read_text() == page
    assert len([*(out / 'phase_a').glob('2*.py')]) == 1


@pytest.mark.long
def test_a_classifier(root, shapes_root, run, tmp_path):
    """All stages with the scores of the framework; only the backbone changes."""
    text = f'_base_ = {str(root / CONFIGS["cls"])!r}\n' + CLASSIFIER
    for split in ('train', 'val', 'test'):
        data_root = f'{shapes_root}/{FOLDERS["cls"]}'
        text += f'{split}_dataloader = dict(dataset=dict(data_root={data_root!r}))\n'
    path, checkpoint = write_teacher(tmp_path, text)
    folder = shapes_root / 'imagenet/train'
    run('linearize', *options((path, checkpoint, folder), tmp_path / 'out', 1, 1))
    report = json.loads((tmp_path / 'out/report.json').read_text())
    assert all('accuracy/top1' in report['scores'][s] for s in ('teacher', 'swap', 'a', 'b'))
    before, after = weights(checkpoint), weights(tmp_path / 'out/model.pth')
    rest = [key for key in before if not key.startswith('backbone.')]
    assert rest and all(torch.equal(after[key], before[key]) for key in rest)
    assert any(not torch.equal(after[key], before[key]) for key in before if 'norm1' in key)


def test_without_a_folder_the_training_images_are_used(teacher):
    """Those alone, also where one folder has the images of several splits."""
    cfg = load_config(str(teacher[0]))
    assert training_images(cfg) == sorted(teacher[2].iterdir())
    cfg.train_dataloader.dataset.indices = [3, 0]
    cfg.train_dataloader.dataset = dict(
        type='RepeatDataset', times=2, dataset=cfg.train_dataloader.dataset
    )
    assert [path.name for path in training_images(cfg)] == [
        path.name for path in np.array(sorted(teacher[2].iterdir()))[[3, 0]]
    ]
    cfg.train_dataloader.dataset.dataset.update(img_suffix='.tif', indices=None)
    with pytest.raises(DataError, match='train_dataloader: '):
        training_images(cfg)
    cfg.train_dataloader = None
    with pytest.raises(DataError, match='has no train_dataloader whose images could be used'):
        training_images(cfg)


@TRANSFORMS.register_module()
class LoadArray(BaseTransform):
    def transform(self, results):
        image = np.load(results['img_path'])
        return dict(results, img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])


def test_images_are_read_by_the_test_pipeline(teacher, tmp_path):
    """Images that the plain step would refuse, too: dark ones of 16 bits and own formats."""
    cfg = load_config(str(teacher[0]))
    dark, own = tmp_path / 'a.png', tmp_path / 'a.npy'
    cv2.imwrite(str(dark), np.full((64, 64), 99, np.uint16))
    np.save(own, np.zeros((64, 64, 3), np.uint8))
    for load, path in (
        (dict(type='LoadImageFromFile', color_type='unchanged'), dark),
        (dict(type='LoadArray'), own),
    ):
        with pytest.raises(DataError, match='cannot be read|pipeline fails on'):
            check_readable([path], '', image_pipeline(cfg, None))
        dataset_of_test(cfg)['pipeline'][0] = load
        assert image_pipeline(cfg, None)[0] == load
        check_readable([path], '', image_pipeline(cfg, None))
    np.save(tmp_path / 'b.npy', np.zeros((64, 32, 3), np.uint8))
    with pytest.raises(DataError, match='which make no batch'):
        check_readable([own, tmp_path / 'b.npy'], '', image_pipeline(cfg, None))


def test_encoder_of_smca(smca, run, tmp_path):
    """All stages, on padded batches: the encoder alone changes, and no iterations are the swap."""
    out, more = tmp_path / "it's", ['--keep-softmax', 'last1']
    arguments = options(smca, out, 4, 4, *more)
    run('linearize', *arguments)
    report = check_distillation(out, smca[1], 'encoder', ['teacher', 'swap', 'a', 'b'])
    assert (report['replaced'], report['parts']) == ([0, 1], ['encoder'])
    assert all('coco/bbox_mAP' in scores for scores in report['scores'].values())
    names = ['encoder.layers.0.self_attn', 'encoder.layers.1.self_attn']
    assert [*report['errors']['swap']] == names
    swapped, a, b = (weights(out / f'{stage}.pth') for stage in ('swap', 'a', 'b'))
    assert not any(torch.equal(b[name], a[name]) for name in b if name.startswith('encoder.'))
    run('test', out / 'config.py', out / 'model.pth', '--work-dir', tmp_path / 'test')
    scores = json.loads(next((tmp_path / 'test').glob('*/*.json')).read_text())
    assert scores['coco/bbox_mAP'] == pytest.approx(report['scores']['b']['coco/bbox_mAP'])
    zero = ['--iters-a', 0, '--iters-b', 0, '--no-score', *more]
    run('linearize', *smca[:2], '--out', tmp_path / 'zero', *zero)
    found = weights(tmp_path / 'zero/model.pth')
    assert all(torch.equal(found[name], swapped[name]) for name in swapped)


def test_core_attention(teacher, run, tmp_path, capsys):
    """Phase A is left out, and the result runs with fewer cores than it was trained with."""
    out, more = tmp_path / 'out', ['--attn', 'CoreAttention', '--attn-options', 'num_cores=16']
    with pytest.raises(InputError, match='iters_b=0 trains no cores'):
        run('linearize', *options(teacher, out, 2, 0, *more, '--no-score'))
    assert not out.exists()
    run('linearize', *options(teacher, out, 2, 2, *more, '--no-score'))
    assert 'Phase A is left out' in capsys.readouterr().out
    assert not (out / 'a.pth').exists() and json.loads((out / 'report.json').read_text())
    before, after = weights(out / 'swap.pth'), weights(out / 'model.pth')
    assert not torch.equal(*(w['backbone.cores.coords'] for w in (before, after)))
    arguments = ['test', out / 'config.py', out / 'model.pth', '--work-dir', tmp_path / 'test']
    run(*arguments, '--cfg-options', 'model.backbone.attn_cfg.num_cores=8')
    assert 'mIoU' in json.loads(next((tmp_path / 'test').glob('*/*.json')).read_text())


def test_fine_tuning_that_saves_no_last_checkpoint(teacher, run, tmp_path):
    """The result is that of the last iteration all the same."""
    found = []
    for name, hook in dict(last={}, none=dict(save_last=False, interval=1000)).items():
        path = tmp_path / f'{name}.py'
        text = f'_base_ = {str(teacher[0])!r}\ntrain_cfg = dict(max_iters=2)\n'
        text += "custom_hooks = [dict(type='EMAHook', momentum=0.3)]\n"
        path.write_text(f'{text}default_hooks = dict(checkpoint={hook})\n')
        more = ('--no-score', '--finetune')
        run('linearize', *options((path, *teacher[1:]), tmp_path / name, 1, 0, *more))
        found.append(weights(tmp_path / name / 'model.pth'))
        files = [*(tmp_path / name / 'phase_c').glob('*.pth')]
        assert bool(files) == (name == 'last')
    average = weights(tmp_path / 'last/phase_c/iter_2.pth')
    assert all(torch.equal(average[key], value) for key, value in found[0].items())
    swapped = weights(tmp_path / 'last/a.pth')
    assert all(torch.equal(found[1][key], value) for key, value in found[0].items())
    assert not all(torch.equal(swapped[key], value) for key, value in found[0].items())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('model', ['teacher', *['smca'] * LONG])
def test_killed_and_resumed(model, request, root, run, tmp_path):
    """SIGKILL in phase B, at length also in phase A: the weights are those of a whole run."""
    teacher = request.getfixturevalue(model)
    whole, out = tmp_path / 'whole', tmp_path / 'out'
    run('linearize', *options(teacher, whole, 4, 12, '--no-score'))
    arguments = ['linearize', *options(teacher, out, 4, 12, '--no-score')]
    script = tmp_path / 'program.py'
    script.write_text('from mmlinattn.__main__ import main\nraise SystemExit(main())\n')
    phases = 'ab' if LONG else 'b'
    for phase in phases:
        resume = ['--resume'] * (phase != phases[0])
        program = Program(script, [*arguments, *resume], tmp_path / f'{phase}.out', [root])
        program.wait_for(f'linearize_{phase}: ')
        program.wait_for(f'Saving checkpoint at {dict(a=2, b=6)[phase]} iterations')
        program.kill()
        assert program.end() == -signal.SIGKILL
    assert (out / 'a.pth').exists() and not (out / 'b.pth').exists()
    run(*arguments, '--resume')
    expected, found = weights(whole / 'model.pth'), weights(out / 'model.pth')
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_bad_input_is_one_line_before_any_work(teacher, run, tmp_path, error_of):
    path, checkpoint, images = teacher
    broken, mixed, empty = (tmp_path / name for name in ('broken', 'mixed', 'empty'))
    empty.mkdir()
    for folder in (broken, mixed):
        shutil.copytree(images, folder)
    first = sorted(broken.iterdir())[0]
    first.write_bytes(first.read_bytes()[:-200])
    cv2.imwrite(str(mixed / 'z.png'), np.zeros((48, 80, 3), np.uint8))
    linked = tmp_path / 'linked'
    linked.mkdir()
    (linked / 'link.png').symlink_to(mixed / 'z.png')
    partial, used = tmp_path / 'partial.pth', tmp_path / 'used'
    state = weights(checkpoint)
    state.pop('backbone.layers.1.attn.proj.weight')
    save_checkpoint(partial, state, {})
    used.mkdir()
    (used / 'notes.txt').write_text('mine')

    def fails(message, *changes, weights=checkpoint, images=images, out='out'):
        arguments = [path, weights, '--images', images, '--out', tmp_path / out, *changes]
        assert message in error_of(run, 'linearize', *arguments, debug=False)
        assert not (tmp_path / 'out').exists()

    fails('does not support extra tokens, such as a class', '--attn', 'EnhancedLinearAttention')
    fails('nowhere: there is no such folder', images='nowhere')
    fails('the folder has no images', images=empty)
    fails(f'{first} cannot be read', images=broken)
    fails('link.png cannot be read: is a link to', images=linked)
    fails('make no batch: give --crop-size H W', images=mixed)
    fails('is not of this whole model', weights=partial)
    fails('give the config it was trained with', weights=partial)
    fails("'lst1' is neither a layer number nor lastN", '--keep-softmax', '0,lst1')
    fails('is not empty: name another folder, or add --resume', out='used')
    (tmp_path / 'file').touch()
    fails(f'cannot be written: {tmp_path / "file"} is a file', out='file')
    fails('--iters-a must not be negative, got -1', '--iters-a', '-1')
    fails('--seed must be below 2**32', '--seed', '4294967296')
    other = _interrupted(tmp_path, 'other', images, iters_a=3)
    fails('is of a run with iters_a=3, not 1000', '--resume', out=other)
    same = _interrupted(tmp_path, 'same', images)
    fails('is of a run with another model or checkpoint', '--resume', out=same)
    pair = _interrupted(tmp_path, 'pair', images, attn=dict(type='AgentAttention', map_size=(7, 7)))
    fails('is of a run with another model', '--resume', '--attn', 'AgentAttention',
          '--attn-options', 'map_size=(7,7)', out=pair)  # fmt: skip
    record = json.loads((tmp_path / pair / 'record.json').read_text())
    (tmp_path / pair / 'record.json').write_text(json.dumps(dict(record, processes=2)))
    fails('is of a run with processes=2, not 1', '--resume', '--attn', 'AgentAttention',
          '--attn-options', 'map_size=(7,7)', out=pair)  # fmt: skip
    # Those that the run began with, not those that the folder has now.
    (tmp_path / same / 'images.json').write_text(json.dumps([str(images / 'gone.png')]))
    fails('gone.png cannot be read', '--resume', out=same)


def _interrupted(tmp_path, name, images, **changes) -> str:
    options = Options(str(images), '', **changes).fixed()
    record = dict(options=options, scores={}, errors={}, teacher='that of another model')
    (tmp_path / name).mkdir()
    (tmp_path / name / 'record.json').write_text(json.dumps(record))
    return name

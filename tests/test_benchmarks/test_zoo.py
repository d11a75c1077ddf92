"""The comparison of all attentions: a grid of the study runner, with a few images and one epoch."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

pytest.importorskip(
    'mmpretrain', reason='the zoo trains classifiers of MMPretrain, the extra "cls"'
)

from benchmarks.study import costs, execution, page, pool, records
from benchmarks.study.execution import execute
from benchmarks.study.grid import Grid, refusal
from benchmarks.zoo import __main__ as zoo
from benchmarks.zoo import data, plan
from mmlinattn.checkpoints import load_state_dict
from mmlinattn.models.layers import BaseAttention, registered_subclasses

pytestmark = pytest.mark.slow

TWO = ('SoftmaxAttention', 'HydraAttention')


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*arguments): the exit code of a tiny zoo in this process, and what it has executed."""
    executed = []

    def execute_here(jobs, folder, workers):
        for run, settings in jobs:
            executed.append(run.name)
            yield (run, settings), execute(run, folder, settings)

    monkeypatch.setattr(pool, 'execute_all', execute_here)

    def call(*arguments, attentions=TWO, data=('shapes',)):
        executed.clear()
        options = ['--quick', '--seeds', '1', '--out', str(tmp_path), '--backbones', 'deit-nano']
        options += ['--data', *data, '--attentions', *attentions]
        return zoo.main([*options, *arguments]), list(executed)

    return call


def fake_records(monkeypatch):
    """Runs take no time: each has a record with a score of 50."""

    def quick(run, folder, settings):
        if 'Hydra' in run.name and (folder / 'bad luck').exists():
            return dict(run=run.name, values=run.values, settings=settings, error='bad luck')
        facts = dict(machine='M', versions='V', commit='C', wall=1.0, rate=None)
        metrics = dict(val={'accuracy/top1': 50.0})
        measured = dict(params=1e6, conv_linear=1e9, total=1e9, ms=[1.0, 1.0, 1.0], bytes=1)
        named = dict(run=run.name, values=run.values, settings=settings)
        return {**named, **facts, **measured, 'metrics': metrics}

    monkeypatch.setattr(sys.modules[__name__], 'execute', quick)


def test_a_run_goes_on_and_a_changed_setting_is_noticed(run, tmp_path, monkeypatch, capsys):
    fake_records(monkeypatch)
    soft, hydra = (f'deit-nano_shapes_{name}_seed0' for name in TWO)
    assert run(attentions=TWO[:1]) == (0, [soft])
    assert run() == (0, [hydra])
    assert run() == (0, [])
    (tmp_path / 'bad luck').touch()
    build = zoo.build

    def other(content, *args):  # another option of one attention
        entry = content['axes']['attention']['HydraAttention']
        entry['options']['model.backbone.attn_cfg']['rotary'] = True
        return build(content, *args)

    monkeypatch.setattr(zoo, 'build', other)
    capsys.readouterr()
    assert run('--seeds', '2') == (1, [hydra, soft.replace('seed0', 'seed1')])
    said = capsys.readouterr().out
    assert '3 runs, 1 are done\n1 were made with other settings' in said and 'bad luck' in said
    assert '| HydraAttention | failed |' in (tmp_path / 'results.md').read_text()
    (tmp_path / 'bad luck').unlink()
    assert run('--seeds', '2') == (0, [hydra])
    assert 'bad luck' not in (tmp_path / 'results.md').read_text()


OWN = """
from mmengine.registry import MODELS
from mmlinattn.models.layers import BaseAttention, HydraAttention

class Unregistered(HydraAttention):
    pass

@MODELS.register_module()
class OwnAttention(HydraAttention):
    pass
"""


def test_an_attention_by_its_path(run, tmp_path, monkeypatch, capsys):
    (tmp_path / 'own_zoo.py').write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    fake_records(monkeypatch)
    try:
        code, executed = run(attentions=['own_zoo.OwnAttention'])
        assert (code, executed) == (0, ['deit-nano_shapes_own_zoo.OwnAttention_seed0'])
        assert '| own_zoo.OwnAttention |' in (tmp_path / 'results.md').read_text()
        with pytest.raises(SystemExit):
            run(attentions=['own_zoo.Unregistered'])
        assert "'own_zoo.Unregistered' is no registered attention" in capsys.readouterr().err
    finally:
        MODELS.module_dict.pop('OwnAttention', None)


def test_data_that_are_not_there_are_named(run, tmp_path, monkeypatch):
    fake_records(monkeypatch)
    monkeypatch.setattr(data, 'BCCD', tmp_path / 'nowhere')
    code, executed = run(attentions=['HydraAttention'], data=('shapes', 'bccd-cells'))
    assert (code, executed) == (0, ['deit-nano_shapes_HydraAttention_seed0'])
    assert '- BCCD cells: skipped, as BCCD is not in' in (tmp_path / 'results.md').read_text()


def test_the_score_is_that_of_the_weights(run, tmp_path):
    """Images read, normalised and counted by hand."""
    assert run(attentions=['AdditiveAttention'])[0] == 0
    (record,) = records.lines(tmp_path / records.FILE)
    values = dict(backbone='deit-nano', data='shapes', attention='AdditiveAttention')
    wanted = plan.grid(quick=True).run(values)
    assert record['run'] == wanted.name and record['metrics']['train']['iterations'] == 1
    cfg = wanted.load()
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model).eval()
    model.load_state_dict(load_state_dict(execution.weights_path(tmp_path, wanted))[0])
    root = tmp_path / 'data/shapes-4-2/imagenet/val'
    mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    right = []
    for label, folder in enumerate(sorted(root.iterdir())):
        for file in folder.iterdir():
            image = (cv2.imread(str(file))[..., ::-1] - mean) / std
            x = torch.from_numpy(image).permute(2, 0, 1)[None].float()
            with torch.no_grad():
                right.append(int(model(x, mode='tensor').argmax()) == label)
    score = record['metrics']['val']['accuracy/top1']
    assert score == pytest.approx(100 * np.mean(right), abs=1e-3)


def test_every_attention_is_there_and_refusals_have_a_reason():
    found = registered_subclasses(BaseAttention)
    kinds = {name: kind for name, kind in found.items() if 'mmlinattn.models.' in kind.__module__}
    axis = plan.grid().axes['attention']
    assert sorted(axis) == sorted(kinds) and [*axis][: len(plan.MAIN)] == list(plan.MAIN)
    for name, entry in axis.items():
        attn_cfg = entry['options']['model.backbone.attn_cfg']
        assert attn_cfg['type'] == name
        off = dict(rotary=False, lepe=0, gate=None)
        optional = name == 'RALA' or 'lepe' in kinds[name].backbone_options
        assert (off.items() <= attn_cfg.items()) == optional, name
    whole = plan.grid(seeds=3)
    assert len(whole.runs()) == 4 * (len(axis) + 2 * len(plan.MAIN))
    refused = set()
    for name in axis:
        run = whole.run(dict(backbone='deit-nano', data='shapes', attention=name))
        why = refusal(run.load())
        if why:
            refused.add(name)
            assert 'does not support extra tokens' in why
    assert refused == {name for name, kind in kinds.items() if not kind.supports_extra_tokens}


def test_the_parts_of_the_page():
    axes = plan.content(dict(attention=['RALA', 'HydraAttention']), 3)
    axes.pop('sizes')
    grid: Grid = zoo.build(axes)
    runs = grid.runs()
    found = {}
    for run, score in zip(runs, range(70, 70 + len(runs))):
        facts = dict(machine='M', versions='V', commit='C', wall=60.0)
        metrics = dict(val={'accuracy/top1': score})
        measured = dict(params=2e6, conv_linear=3e9, total=4e9, ms=[5.0, 4.0, 6.0], bytes=2**20)
        named = dict(run=run.name, values=run.values)
        found[run.name] = {**named, **facts, **measured, 'metrics': metrics}
    refused = {
        'deit-nano_shapes_HydraAttention': 'why; so',
        'deit-nano_bccd-cells_HydraAttention': 'x',
    }
    lines = page.table(page.Results(grid, found, refused))
    assert [line for line in lines if line.startswith('#')] == ['## DeiT-nano', '## RAVLT-nano']
    heads = next(line for line in lines if line.startswith('| attention'))
    assert heads.startswith('| attention | Shapes, accuracy, % | BCCD cells, accuracy, % |')
    assert '| HydraAttention | refused | refused |' in '\n'.join(lines)
    # Seeds 0, 1 and 2 of RALA in DeiT on Shapes are runs 0, 8 and 12.
    values = [70, 78, 82]
    mean, spread = np.mean(values), np.std(values, ddof=1)
    assert f'| RALA | {mean:.1f} ± {spread:.1f} (3) |' in '\n'.join(lines)
    assert '- Refused: `deit-nano_shapes_HydraAttention`: why.' in lines


def test_costs_are_of_the_models_that_were_asked_for():
    grid = plan.grid()
    runs = {
        name: grid.run(dict(backbone='deit-nano', data='shapes', attention=name))
        for name in ('HydraAttention', 'NystromAttention')
    }
    cost = dict(shape=[64, 64], batch=2, rounds=2)
    found = costs.measure({name: run.load() for name, run in runs.items()}, cost)
    hydra, nystrom = found['HydraAttention'], found['NystromAttention']
    # Patches, token, positions; 6 layers of norms, projections and MLP; norm, classes.
    layer = 4 * 96 + (96 * 288 + 288) + (96 * 96 + 96) + (2 * 4 * 96 * 96 + 5 * 96)
    params = 3 * 64 * 96 + 96 + 96 + 65 * 96 + 6 * layer + 2 * 96 + 96 * 5 + 5
    assert hydra['params'] == params
    assert nystrom['params'] == params + 6 * (25 * 96 + 96)
    # Of the gradients alone there are as many bytes.
    assert min(hydra['ms']) > 0 and nystrom['bytes'] > hydra['bytes'] > 4 * params


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--seeds', '0'], '--seeds must be positive, got 0'),
        (['--bccd', 'nowhere'], '--bccd nowhere: no annotations/train.json there'),
        (
            ['--attentions', 'HydraAtention'],
            "'HydraAtention' is unknown; did you mean HydraAttention?",
        ),
        (['--attentions', 'no_such.Own'], "'no_such.Own' cannot be imported: No module named"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        zoo.parse_args(arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err


def test_the_page_has_a_place_for_the_table(root: Path):
    text = (root / 'docs' / 'comparison.md').read_text()
    assert text.count(page.begin(plan.grid())) == text.count(page.END) == 1


def test_docs_are_of_the_complete_zoo(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(zoo.data, 'find_bccd', lambda folder: folder)
    for words, message in (
        (['--attentions', 'RALA'], 'leave out --attentions'),
        (['--quick'], 'leave out --quick'),
        ([], 'it needs BCCD'),
    ):
        with pytest.raises(SystemExit):
            zoo.parse_args(['--docs', *words])
        assert message in capsys.readouterr().err
    args = zoo.parse_args(['--committed', '--jobs', '1', '--bccd', str(tmp_path)])
    assert args.content['command'] == 'python -m benchmarks.zoo'

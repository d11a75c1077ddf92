"""The study runner: grids, runs, kills, records, pages."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

pytest.importorskip('mmpretrain', reason='the runs are of classifiers, the extra "cls"')

from benchmarks.study import __main__ as program
from benchmarks.study import execution, results
from benchmarks.study import grid as grids
from benchmarks.study.grid import GridError
from mmlinattn.datasets import shapes
from mmlinattn.engine.config_files import config_file
from mmlinattn.models.layers import BaseAttention, registered_subclasses

TINY = dict(
    name='tiny',
    title='Two tiny runs',
    config='configs/zoo/deit-nano_shapes.py',
    options={
        'train_cfg.max_epochs': 3,
        'train_cfg.val_interval': 3,
        'param_scheduler.0.total_steps': 3,
        'default_hooks.report': None,
        'train_dataloader.batch_size': 4,
    },
    splits=dict(val={}),
    metrics={'accuracy': dict(key='accuracy/top1', split='val')},
    cost=dict(shape=[64, 64], rounds=1),
    axes=dict(
        model={
            name: dict(options={'model.backbone.attn_cfg': dict(type=f'{name}Attention')})
            for name in ('Softmax', 'Hydra')
        }
    ),
    page=dict(rows='model', charts=['ranking', 'latency']),
)


def record_of(path):
    """Whether the study of a grid has ended."""
    return (grids.ROOT / 'docs/studies' / f'{path.stem}.json').is_file()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """tiny(**changes): the grid file, with its data in the current folder."""
    monkeypatch.chdir(tmp_path)
    shapes.generate('data/shapes', 6, 2)

    def write(**changes):
        path = tmp_path / 'tiny.yml'
        path.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
        return path

    return write


def record(run, score, **more):
    """The record of a run with a score of its first metric."""
    facts = dict(machine='m', versions='v', commit='0' * 40, wall=60.0)
    metrics = dict(val={'accuracy/top1': score})
    return dict(run=run.name, values=run.values, seed=run.seed, rate=run.rate, metrics=metrics,
                **facts, **more)  # fmt: skip


@pytest.mark.slow
def test_a_study_trains_tests_and_shows(tiny, tmp_path, capsys):
    words = [str(tiny()), '--out', str(tmp_path / 'out')]
    assert program.run(words) == 0
    text = (tmp_path / 'out/results.md').read_text()
    for name in ('Softmax', 'Hydra'):
        assert re.search(rf'\| {name} \| \d+\.\d \(1\) \|', text)
        (folder,) = (tmp_path / 'out/runs').glob(f'{name}_seed0-*')
        found = json.loads((folder / 'record.json').read_text())
        assert [*found['metrics']] == ['val'] and 'error' not in found
        weights = torch.load(tmp_path / f'out/weights/{name}_seed0.pth', weights_only=True)
        assert weights['meta']['attn_cfg'] == {'type': f'{name}Attention'}
        assert not [*folder.rglob('*.pth')]  # of weights there is one file
    assert (tmp_path / 'out/ranking.png').is_file()
    assert not (tmp_path / 'out/latency.png').exists()
    # What is there is not repeated.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / 'out/runs').rglob('*.json')}
    assert program.run([*words, '--costs']) == 0 and program.run(words) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    text = (tmp_path / 'out/results.md').read_text()
    assert 'ms an image' in text and 'on an idle' in text
    assert (tmp_path / 'out/latency.png').is_file()


@pytest.mark.slow
def test_a_killed_study_goes_on(tiny, tmp_path, root):
    """From the last checkpoint of its training."""
    options = {**TINY['options'], 'train_cfg.max_epochs': 16, 'train_cfg.val_interval': 16}
    options.update({'param_scheduler.0.total_steps': 16, 'default_hooks.checkpoint.interval': 1})
    path = tiny(options=options)
    command = [sys.executable, '-m', 'benchmarks.study', path, '--only', 'model=Hydra']
    environment = dict(os.environ, PYTHONPATH=str(root))
    first = subprocess.Popen([*command, '--out', 'out'], env=environment)
    deadline = time.monotonic() + 300
    while not [*tmp_path.glob('out/runs/*/epoch_1.pth')]:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.terminate()  # shells start background jobs with SIGINT ignored
    assert first.wait(60) == 143
    (log,) = tmp_path.glob('out/runs/*/log.txt')
    before = log.read_text()
    assert 'no checkpoint in' in before
    (folder,) = tmp_path.glob('out/runs/*')
    grid = grids.build(
        dict(grids.read(path), axes=dict(model=dict(Hydra=TINY['axes']['model']['Hydra'])))
    )
    (run,) = grid.runs({})
    found = execution.execute(run, tmp_path / 'out')
    assert 'error' not in found and 'no checkpoint in' not in log.read_text()[len(before) :]
    assert execution.run_folder(tmp_path / 'out', run) == folder


@pytest.mark.slow
def test_a_failed_run_is_recorded_and_tried_again(tiny, tmp_path):
    path = tiny(metrics={'accuracy': dict(key='accuracy/top7', split='val')})
    words = [str(path), '--out', str(tmp_path / 'out'), '--only', 'model=Hydra']
    assert program.run(words) == 1
    text = (tmp_path / 'out/results.md').read_text()
    assert '| Hydra | failed |' in text
    assert 'split val has no metric accuracy/top7; it has accuracy/top1' in text
    grid = grids.build(grids.read(path))
    assert len(execution.records(tmp_path / 'out', grid.runs({}))) == 1


def test_the_best_rate_on_val_is_chosen(tiny):
    search = {'train_cfg.max_epochs': 1}
    content = dict(TINY, learning_rates=[1e-3, 2e-3, 4e-3], search_options=search, seeds=2)
    grid = grids.build(grids.read(tiny(**content)))
    other, hydra = grid.points()
    runs = grid.search(hydra)
    assert runs[0].name == 'Hydra_lr0.001_search'
    assert (
        runs[0].options['train_cfg.max_epochs'] == 1
        and runs[0].load().optim_wrapper.optimizer.lr == 1e-3
    )
    found = {run.name: record(run, score) for run, score in zip(runs, (10, 30, 30))}
    found[grid.search(other)[0].name] = dict(error='it failed')
    rates = results.chosen_rates(grid, found)
    assert rates == {'Hydra': 2e-3}  # of equal ones the smaller; without a result none
    assert [run.name for run in grid.runs(rates)] == ['Hydra_lr0.002_seed0', 'Hydra_lr0.002_seed1']
    assert 'Learning rates' in '\n'.join(results.table(results.Results(grid, found)))


def test_seeds_and_settings(tiny):
    grid = grids.build(grids.read(tiny(seeds=2, more_seeds=dict(model=dict(Hydra=3)))))
    names = [run.name for run in grid.runs({})]
    assert names == [f'{name}_seed{seed}' for seed in (0, 1) for name in ('Softmax', 'Hydra')] + [
        'Hydra_seed2'
    ]
    first, second = grid.runs({})[:2]
    assert first.settings != second.settings
    assert first.load().randomness.seed == 0 and grid.runs({})[2].load().randomness.seed == 1


def test_a_table_has_means_deviations_and_gaps(tiny):
    grid = grids.build(dict(TINY, seeds=2, axes=dict(
        model=TINY['axes']['model'], size=dict(small=None, large=dict(title='Large'))),
        page=dict(rows='model', columns='size', quantities=['accuracy'])))  # fmt: skip
    runs = {run.name: run for run in grid.runs({})}
    scores = dict(Softmax_small_seed0=50, Softmax_small_seed1=54, Hydra_large_seed0=7)
    found = {name: record(runs[name], score) for name, score in scores.items()}
    found['Hydra_small_seed0'] = dict(error='ValueError: no')
    costs = dict(
        Softmax_small=dict(params=2e6, conv_linear=1, total=1, ms=[1.5, 1, 2], bytes=2**20)
    )
    costs['facts'] = dict(machine='idle', commit='1' * 40)
    grid.refused = {'Softmax_large': 'no'}
    page = '\n'.join(results.table(results.Results(grid, found, costs)))
    assert '| model | small, accuracy | Large, accuracy | parameters, M |' in page
    assert '| Softmax | 52.0 ± 2.8 (2) | refused | 2.00 |' in page
    assert '| Hydra | failed | 7.0 (1) |' in page
    assert '- Refused: `Softmax_large`: no.' in page and '- Failed: `Hydra_small_seed0`' in page


def test_pages_of_docs_are_written_and_drawn_again(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(program, 'DOCS', tmp_path)
    for folder in ('images', 'studies'):
        (tmp_path / folder).mkdir()
    grid = grids.build(TINY)
    runs = grid.runs({})
    found = {run.name: record(run, 50) for run in runs[:1]}
    with pytest.raises(GridError, match='no result of Hydra_seed0: run it first'):
        program.publish(results.Results(grid, found))
    found[runs[1].name] = record(runs[1], 60)
    program.publish(results.Results(grid, found))
    page, picture = tmp_path / 'studies/tiny.md', tmp_path / 'images/tiny_ranking.png'
    text = page.read_text()
    assert '| Hydra | 60.0 (1) |' in text and '](../images/tiny_ranking.png)' in text
    record_file = page.with_suffix('.json')
    before = record_file.read_text()
    assert len(json.loads(before)['records']) == 2
    page.unlink(), picture.unlink()
    assert program.run([str(tiny()), '--redraw']) == 0
    assert page.read_text() == text and picture.is_file() and record_file.read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', [path.stem for path in grids.GRIDS.glob('*.yml') if record_of(path)]
)
def test_pages_show_what_the_committed_records_give(root, tmp_path, name):
    page = root / f'docs/studies/{name}.md'
    grid = grids.build(grids.read(grids.GRIDS / f'{name}.yml'))
    found = results.committed(grid, page.with_suffix('.json'))
    assert page.read_text() == results.page(found, tmp_path), '--redraw'


def test_a_linearised_model_has_a_teacher(tiny):
    entry = dict(linearize=dict(teacher='Softmax', iters_a=5, keep_softmax=[1, 'last1']))
    axes = dict(model=dict(TINY['axes']['model'], linear=entry))
    shared = dict(iters_b=7, attn='LinearAttention')
    grid = grids.build(grids.read(tiny(axes=axes, linearize=shared)))
    run = grid.runs({})[-1]
    assert run.teacher.name == 'Softmax_seed0'
    assert execution.linearize_options(run.linearize) == [
        '--attn', 'LinearAttention', '--iters-b', '7', '--iters-a', '5',
        '--keep-softmax', '1,last1',
    ]  # fmt: skip
    attn_cfg = run.load('val').model.backbone.attn_cfg
    assert attn_cfg == {'default': 'LinearAttention', 'SoftmaxAttention': [1, 5]}


def test_a_grid_on_another_one(tiny, tmp_path):
    tiny()
    mine = tmp_path / 'mine.yml'
    entry = dict(options={'model.backbone.attn_cfg': 'MALA'})
    own = dict(base='tiny.yml', name='mine', only=dict(model=['Mine', 'Hydra']))
    mine.write_text(yaml.safe_dump(dict(own, axes=dict(model=dict(Mine=entry)))))
    content = grids.read(mine)
    assert content['name'] == 'mine' and [*content['axes']['model']] == ['Mine', 'Hydra']
    assert content['options'] == TINY['options']


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(sees=2), "unexpected keyword argument 'sees'"),
        (dict(metrics={'a': dict(ky='b')}), "unexpected keyword argument 'ky'"),
        (dict(axes=dict(model=dict(A=dict(optoins={})))), 'model A: unknown optoins'),
        (dict(axes=dict(model={'a/b': None})), "'a/b' is no name of a file"),
        (dict(page=dict(rows='modle')), "page.rows: no axis 'modle'"),
        (dict(page=dict(rows='model', document='a.md')), 'page: unknown document'),
        (dict(only=dict(model=['Hydr'])), "model 'Hydr' is unknown; did you mean Hydra"),
        (dict(learning_rates=[1e-3], splits=dict(test={})), 'learning_rates need the split val'),
        (dict(config='nowhere.py'), "Softmax: config 'nowhere.py' does not exist"),
        (dict(prepare={'data/shapes/no': '-m mmlinattn shapes --num-train 0'},
              options={'train_dataloader.dataset.data_root': 'data/shapes/no'}),
         'data/shapes/no cannot be made: error: ValueError: num_train'),
        (dict(axes=dict(model=dict(A=dict(options={'model.backbone.out_type': 'x'})))), 'A: '),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_any_training(tiny, capsys, monkeypatch, changes, message):
    monkeypatch.setattr(program, 'train', lambda *_: pytest.fail('it trains'))
    assert program.run([str(tiny(**changes)), '--out', 'out']) == 2
    said = capsys.readouterr().out
    assert message in said and [line for line in said.splitlines() if line.startswith('error: ')]


def test_grids_of_the_repository(root):
    for path in grids.GRIDS.glob('*.yml'):
        for quick in (False, True):
            grid = grids.build(grids.read(path, quick))
            assert grid.name == path.stem + '-quick' * quick
            assert {*grid.page.get('named', ())} <= {*grid.axes[grid.page['rows']]} or quick
            for run in map(grid.run, grid.points()):
                assert (root / run.config).is_file() or config_file(run.config)


def test_the_zoo_has_every_attention_that_a_small_classifier_can_have():
    zoo = grids.read(grids.GRIDS / 'zoo.yml')['axes']['attention']
    assert {*zoo} <= {*registered_subclasses(BaseAttention)} and len(zoo) == 26


def test_arguments(capsys):
    for words, message in (
        (['zoo', '--jobs', '0'], '--jobs must be positive, got 0'),
        (['zoo', '--docs', '--quick'], '--docs shows the complete study'),
        (['zoo', '--only', 'model'], "--only must be AXIS=NAME,NAME, got 'model'"),
    ):
        with pytest.raises(SystemExit, match='2'):
            program.parse_args(words)
        assert message in capsys.readouterr().err
    assert program.run(['nowhere.yml']) == 2
    assert Path('nowhere.yml').name in capsys.readouterr().out

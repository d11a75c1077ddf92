"""The study runner: grids, kills, records, pages."""

import json
import os
import random
import re
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

pytest.importorskip('mmpretrain', reason='the runs are of classifiers, the extra "cls"')

from benchmarks.study import charts, execution, page, pool, records, session
from benchmarks.study import grid as grids
from benchmarks.study.__main__ import main
from benchmarks.study.__main__ import run as end_of
from benchmarks.study.grid import GridError
from benchmarks.zoo import plan
from mmlinattn.checkpoints.checkpoint_uri import package_weights
from mmlinattn.cli import commands as program
from mmlinattn.datasets import shapes
from tests.pictures import check_picture
from tests.programs import Program

LONG = os.environ.get('MMLINATTN_TEST_LONG')
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
    page=dict(rows='model', charts=['ranking', 'latency', 'curves']),
)


@pytest.fixture
def tiny(tmp_path):
    """tiny(**changes): the grid file, its data beside it."""
    shapes.generate(tmp_path / 'data' / 'shapes', 6, 2, workers=1)

    def write(**changes):
        path = tmp_path / 'tiny.yml'
        path.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
        return path

    return write


def start(root, tmp_path, path):
    script = tmp_path / 'study.py'
    script.write_text(
        'import sys\nfrom benchmarks.study.__main__ import main, run\n'
        'if __name__ == "__main__":\n    sys.exit(run(main, sys.argv[1:]))\n'
    )
    arguments = (path, '--jobs', 2, '--out', tmp_path / 'out', '--data-root', tmp_path / 'data')
    return Program(script, arguments, tmp_path / 'output.txt', paths=[root])


def wait_until(program, done):
    end = time.monotonic() + 240
    while not done():
        assert program.process.is_alive() and time.monotonic() < end, program.text()[-3000:]
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.long
def test_a_study_that_is_killed_goes_on(root, tmp_path, tiny):
    """Killed in a search and in a training, and long also at random: each run is there once."""
    search = dict(learning_rates=[1e-3, 2e-3], search_options={'train_cfg.max_epochs': 2})
    path, out = tiny(**search), tmp_path / 'out'
    for part in ('runs/*_search-*/epoch_1.pth', 'runs/*_seed0-*/epoch_1.pth'):
        program = start(root, tmp_path, path)
        wait_until(program, lambda of=part: next(out.glob(of), None))
        program.kill()
    for _ in range(6 if LONG else 0):
        program = start(root, tmp_path, path)
        program.process.join(random.uniform(5, 20))
        if program.process.is_alive():
            program.kill()
    with (out / records.FILE).open('a') as file:
        file.write('{"run": "Softmax_se')  # as a kill inside of a write leaves it
    program = start(root, tmp_path, path)
    assert program.end() == 0, program.text()[-3000:]
    found = [*records.lines(out / records.FILE)]
    searched = [record for record in found if record['run'].endswith('_search')]
    assert sorted((record['values']['model'], record['rate']) for record in searched) == [
        (model, rate) for model in ('Hydra', 'Softmax') for rate in (1e-3, 2e-3)
    ]
    found = [record for record in found if record not in searched]
    assert sorted(record['values']['model'] for record in found) == ['Hydra', 'Softmax']
    for record in found:
        assert record['metrics']['train']['iterations'] == record['curve'][-1][0]
        assert 0 <= record['metrics']['val']['accuracy/top1'] <= 100
        assert record['params'] > 6e5 and record['total'] >= record['conv_linear'] > 1e7
        assert min(record['ms']) > 0 and record['bytes'] > 1e6 and len(record['settings']) == 16
    resumed = [len([*folder.glob('2*')]) for folder in (out / 'runs').iterdir()]
    assert max(resumed) > 1 and not [*out.glob('runs/*/*.pth')]
    assert {path.name for path in (out / 'weights').iterdir()} == {
        'Hydra_seed0.pth',
        'Softmax_seed0.pth',
    }
    text = (out / 'results.md').read_text()
    assert '| Hydra |' in text and (out / 'latency.png').is_file()


def linearised(**changes):
    """Return TINY with the model Softmax, and a student of it."""
    student = dict(linearize=dict(teacher='Softmax', attn='MALA', **changes))
    return dict(TINY, axes=dict(model=dict(Softmax=TINY['axes']['model']['Softmax'], S=student)))


@pytest.mark.slow
def test_a_linearised_model(tmp_path, tiny):
    """Its weights come from its teacher's, with the same head, and so do its settings."""
    tiny()
    content = linearised(iters_a=5, iters_b=6, batch_size=2)
    teacher, student = grids.build(content, str(tmp_path / 'data')).runs()
    for run in (teacher, student):
        made = execution.execute(run, tmp_path, run.settings())
        assert 'error' not in made, made
        execution.clean(run, tmp_path, run.settings())
    assert made['metrics']['train']['iterations'] == 11 and made['curve'][-1][0] == 11
    assert 0 <= made['metrics']['val']['accuracy/top1'] <= 100
    assert student.load('val').model.backbone.attn_cfg == 'MALA'
    before, after = (
        execution.load_state_dict(str(execution.weights_path(tmp_path, run)))[0]
        for run in (teacher, student)
    )
    assert all(torch.equal(after[key], before[key]) for key in before if key.startswith('head.'))
    assert sum('lepe.weight' in key for key in after) > 1
    assert not [*(tmp_path / 'runs').rglob('*.pth')]
    longer = linearised(iters_a=5, iters_b=6, batch_size=2)
    longer['options'] = {**TINY['options'], 'train_cfg.max_epochs': 4}
    others = [longer, linearised(iters_a=5, iters_b=7, batch_size=2)]
    found = [grids.build(of).runs()[1].settings() for of in (content, *others)]
    assert len({*found}) == 3


def test_students_come_after_their_teachers(tmp_path, monkeypatch):
    """And fail if these have failed, even if weights of other settings are there."""
    grid, made = grids.build(linearised(iters_a=5)), []
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})

    def execute_all(todo, folder, workers):
        made.append([run.name for run, _ in todo])
        yield from ((job, record(grid, job[0], 50, settings=job[1])) for job in todo)

    monkeypatch.setattr(session.pool, 'execute_all', execute_all)
    session.Session(grid, tmp_path).train(2)
    assert made == [['Softmax_seed0'], ['S_seed0']]
    teacher, student = grid.runs()
    message = 'its teacher Softmax_seed0 has no weights of these settings'
    assert message in execution.execute(student, tmp_path, 's')['error']
    path = execution.weights_path(tmp_path, teacher)
    path.parent.mkdir()
    execution.save_checkpoint(path, {'a': torch.zeros(1)}, dict(settings='others'))
    assert message in execution.execute(student, tmp_path, 's')['error']


def test_a_student_has_the_data_of_its_teacher():
    content = linearised()
    content['axes']['model']['Softmax'] = dict(
        config='configs/zoo/deit-nano_bccd-cells.py', shape=[32, 32], options={'a': 1}
    )
    teacher, student = grids.build(dict(content, config='')).runs()
    assert student.config == teacher.config and student.cost == teacher.cost
    assert student.options == teacher.options


def test_options_of_the_command_linearize(tmp_path):
    of = dict(attn='RWGKA', attn_options=dict(num_anchors=8), keep_softmax=[0, 'last1'], lr_a=1e-3)
    arguments = grids.linearize_options(dict(of, crop_size=[48, 64]))
    args = program.arguments.linearize(['c.py', 'c.pth', '--out', 'o', *arguments])
    assert (args.attn, args.attn_options, args.keep_softmax) == (
        'RWGKA', dict(num_anchors=8), (0, 'last1'),
    )  # fmt: skip
    assert (args.lr_a, args.crop_size, [*args.resolutions]) == (1e-3, [48, 64], [])


def record(grid, run, score, **other):
    facts = dict(machine='M', versions='V', commit='C', wall=60.0, rate=run.rate, seed=run.seed)
    costs = dict(params=2e6, conv_linear=3e9, total=4e9, ms=[5.0, 4.0, 6.0], bytes=7 * 2**20)
    metrics = dict(train=dict(iterations=9), val={'accuracy/top1': score})
    named = dict(run=run.name, values=run.values, settings='s')
    return {**named, **facts, **costs, 'metrics': metrics, 'curve': [[1, 2.0], [2, 1.0]], **other}


def test_the_page_by_hand():
    grid = grids.build(dict(TINY, seeds=3, learning_rates=[1e-3, 2e-3], command='python'))
    (soft_1, soft_2, *_) = grid.search()
    found = [record(grid, soft_1, 70), record(grid, soft_2, 60)]
    found[0]['commit'] = 'D; C, with changes'
    for seed, score in ((1, 72), (2, 77)):
        found.append(record(grid, grid.run(soft_1.values, seed, 1e-3), score))
    hydra = grid.run({'model': 'Hydra'}, 0, 1e-3)
    found.append(dict(run=hydra.name, values=hydra.values, settings='s', error='no luck'))
    results = page.Results(grid, {of['run']: of for of in found})
    heads = 'accuracy | parameters, M | G, conv + linear | G, all products | ms an image'
    assert page.table(results) == [
        f'| model | {heads} | MiB, forward + backward |',
        '| --- | ---: | ---: | ---: | ---: | ---: | ---: |',
        # The squares of -3, -1 and 4 are 26, over n - 1 = 2.
        f'| Softmax | 73.0 ± {13**0.5:.1f} (3) | 2.00 | 3.00 | 4.00 | 5.00 | 7 |',
        '',
        'Learning rates, accuracy on the validation split with seed 0:',
        '',
        '| | 0.001 | 0.002 | chosen |',
        '| --- | ---: | ---: | ---: |',
        '| Softmax | 70.0 | 60.0 | 0.001 |',
        '| Hydra | no result | no result |  |',
        '',
        '- Not run yet: `Hydra`.',
        '- Failed: `Hydra_lr0.001_seed0`: no luck',
        '',
        '- 4 runs, 4 minutes of one process: 0.0 hours with `--jobs 2`.',
        '- Iterations: 9.',
        '- Machine: M.',
        '- Versions: V.',
        '- Commit: C, D; 1 of the runs with uncommitted changes.',
        '- Times and memory: float32, batches of 1, one thread, beside a training.',
        '- Command: `python`.',
    ]
    figure = session.charts.draw(results, 'latency')
    ((point,),) = [axes.containers[0][0].get_xydata() for axes in figure.axes]
    assert tuple(point) == (5.0, 73.0)


def test_ranks_of_the_start_and_of_the_trained_model(tmp_path, monkeypatch):
    """Means and medians over two layers by hand, in the record, the page and the picture."""
    metrics = {
        'accuracy': dict(key='accuracy/top1', split='val'),
        'KV': dict(key='kv_sum', split='rank', optional=True),
        'out': dict(key='head_output', split='rank_start', digits=2),
    }
    images = dict(images='data/shapes', num_images=3)
    shown = dict(rows='model', quantities=['out', 'KV'], charts=['spectra', 'layers'])
    content = dict(TINY, metrics=metrics, rank=images, page=shown, command='python')
    grid = grids.build(content, '/elsewhere')
    soft, hydra = grid.runs()
    without = grids.build({**content, 'rank': {**images, 'num_images': 4}}).runs()[0]
    assert soft.settings() != without.settings()
    seen = []

    def layer(**of):
        spectra = {name: dict(values=values) for name, (_, values) in of.items()}
        return dict(mean_ranks={name: rank for name, (rank, _) in of.items()}, spectra=spectra)

    def command(*words):
        seen.append(words)
        layers = [layer(head_output=(2.0, [1.0, 0.1])), layer(head_output=(4.0, [1.0, 0.3]))]
        if len(seen) > 2:
            layers = [layer(head_output=(3.5, [1.0, 0.5]), kv_sum=(9.0, [1.0, 0.2]))]
        out = words[words.index('--out') + 1]
        out.mkdir(parents=True)
        (out / 'rank.json').write_text(json.dumps(dict(layers=layers)))

    monkeypatch.setattr(execution, 'command', command)
    found = {}
    for run, kv in ((soft, None), (hydra, 9.0)):
        ranks, spectra = execution.ranks(run, 'x.pth', tmp_path / run.name)
        metrics = execution.mean_ranks(ranks)
        assert metrics['rank'].get('kv_sum') == kv
        of = record(grid, run, 70, spectra=spectra, ranks=ranks)
        of['metrics'].update(metrics)
        execution.check_metrics(run, of['metrics'])
        found[run.name] = of
    assert [('x.pth' in words, words[words.index('--images') + 1]) for words in seen[:2]] == [
        (False, '/elsewhere/shapes'),
        (True, '/elsewhere/shapes'),
    ]
    assert found[soft.name]['spectra']['rank'] == dict(head_output=[1.0, 0.2])
    results = page.Results(grid, found)
    text = page.table(results)
    assert text[0] == '| model | out | KV |'
    assert text[2:4] == ['| Softmax | 3.00 (1) | none |', '| Hydra | 3.50 (1) | 9.0 (1) |']
    kv, head, _ = session.charts.draw(results, 'spectra').axes
    assert [[*line.get_ydata()] for line in kv.lines] == [[1.0, 0.2]] * 2
    assert [[*line.get_ydata()] for line in head.lines] == [[1.0, 0.2]] * 2 + [[1.0, 0.5]] * 2
    kv, head, _ = session.charts.draw(results, 'layers').axes
    of_kv, of_head = (
        [[*bars.lines[0].get_ydata()] for bars in axes.containers] for axes in (kv, head)
    )
    assert of_kv == [[9.0]] * 2
    assert of_head == [[2.0, 4.0]] * 2 + [[3.5]] * 2


def test_what_hooks_log_is_shown_as_means_over_the_seeds(tmp_path):
    """A later session replaces the steps that it repeats."""
    name = 'ripple/{}/backbone.layers.0.attn'
    fixed, equal, entropy = map(name.format, ('js_fixed', 'js_uniform', 'entropy'))
    metrics = {
        'accuracy': dict(key='accuracy/top1', split='val'),
        'fixed': dict(key=fixed, split='train', digits=2),
    }
    axes = dict(model=dict(Soft={}))
    shown = dict(rows='model', quantities=['fixed'], charts=['ring_weights'])
    content = dict(TINY, metrics=metrics, axes=axes, seeds=2, page=shown, command='python')
    grid = grids.build(content)
    found = {}
    for run, last in zip(grid.runs(), (0.5, 0.75)):
        for session_of, steps in (('a', {1: 0.25, 2: 9.0}), ('b', {2: last})):
            file = tmp_path / run.name / session_of / 'vis_data' / 'scalars.json'
            file.parent.mkdir(parents=True)
            lines = [
                {fixed: number, equal: 0.0, entropy: 1.0, 'iter': step, 'step': step}
                for step, number in steps.items()
            ]
            lines += [dict(loss=1.0, iter=2, step=2, time=1.0), {'accuracy/top1': 7, 'step': 2}]
            file.write_text(''.join(json.dumps(line) + '\n' for line in lines))
        series = execution.logged_by_hooks(tmp_path / run.name)
        assert series[fixed] == [[1, 0.25], [2, last]] and len(series) == 3
        of = record(grid, run, 70, series=series)
        of['metrics']['train'] = {fixed: last, 'iterations': 2}
        found[run.name] = of
    results = page.Results(grid, found)
    assert page.table(results)[:3] == [
        '|  | Soft |',
        '| --- | ---: |',
        '| fixed | 0.62 ± 0.18 (2) |',
    ]
    _, second = found.values()
    first = session.charts.draw(results, 'ring_weights').axes[0]
    assert [[*line.get_xydata().ravel()] for line in first.lines] == [[1, 0.25, 2, 0.625]]
    (band,) = first.collections
    edges = {round(y, 4) for x, y in band.get_paths()[0].vertices if x == 2}
    assert edges == {0.4482, 0.8018}  # 0.25 / sqrt(2) from the mean
    del second['series'][fixed][0]
    first = session.charts.draw(results, 'ring_weights').axes[0]
    assert [[*line.get_xydata().ravel()] for line in first.lines] == [[2, 0.625]]
    del second['metrics']
    first = session.charts.draw(results, 'ring_weights').axes[0]
    assert [[*line.get_xydata().ravel()] for line in first.lines] == [[1, 0.25, 2, 0.5]]
    for of in found.values():
        del of['series']
    with pytest.raises(GridError, match='needs RippleWeightsHook'):
        session.charts.draw(results, 'ring_weights')
    assert page.table(page.Results(grid, {}))[0] == '- Not run yet: `Soft`.'


def test_costs_measured_alone_replace_those_of_the_runs():
    """With their quartiles in the picture; the page names the models that have none."""
    grid = grids.build(dict(TINY, command='python'))
    soft, hydra = grid.runs()
    found = {run.name: record(grid, run, 70) for run in (soft, hydra)}
    alone = dict(params=1e6, conv_linear=1e9, total=1e9, ms=[2.0, 1.5, 4.0], bytes=1)
    costs = {soft.point: alone, 'facts': dict(commit='0123456789abc', machine='M')}
    results = page.Results(grid, found, costs=costs)
    text = page.table(results)
    assert text[2].endswith('| 2.00 | 0 |') and text[3].endswith('| 5.00 | 7 |')
    said = 'all models in turns on an idle M, commit 0123456789; those of `Hydra` beside'
    assert said in text[-2]
    (axes,) = session.charts.draw(results, 'latency').axes
    bar = axes.containers[0][2][0].get_segments()[0]
    assert sorted(x for x, _ in bar) == [1.5, 4.0]


def test_shorter_trainings_choose_the_learning_rate(tmp_path, monkeypatch):
    """They have no weights and no costs, are tested on val alone, and the page shows them."""
    of = dict(splits=dict(val={}, test={}), search_options={'train_cfg.max_epochs': 2})
    grid = grids.build(dict(TINY, learning_rates=[1e-3, 2e-3], **of, command='python'))
    first, second, *_ = grid.search()
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})
    seen = []

    def train(cfg, here):
        seen.append((cfg.train_cfg.max_epochs, cfg.optim_wrapper.optimizer.lr))
        return 'x.pth', dict(seconds=1.0, iterations=cfg.train_cfg.max_epochs), [[1, 2.0]]

    monkeypatch.setattr(execution, 'train', train)
    monkeypatch.setattr(execution, 'test', lambda run, split, *_: {
        'accuracy/top1': {1e-3: 50.0, 2e-3: 60.0}[run.rate] + 5 * (split == 'test')
    })  # fmt: skip
    kept = []
    monkeypatch.setattr(execution, 'save_weights', lambda run, *_: kept.append(run.name))

    def execute_all(todo, folder, workers):
        yield from ((job, execution.execute(job[0], tmp_path, job[1])) for job in todo)

    monkeypatch.setattr(session.pool, 'execute_all', execute_all)
    study = session.Session(grid, tmp_path)
    study.train(1)
    assert seen == [(2, 1e-3), (2, 2e-3)] * 2 + [(3, 2e-3)] * 2
    assert kept == ['Softmax_lr0.002_seed0', 'Hydra_lr0.002_seed0']
    made = records.read(study.file, study.wanted([first, second, *study.runs()]))
    assert [*made['Softmax_lr0.002_search']['metrics']] == ['train', 'val']
    assert 'params' not in made['Softmax_lr0.002_search']
    assert 'params' in made['Softmax_lr0.002_seed0']
    text = page.table(study.results())
    assert '| Softmax | 50.0 | 60.0 | 0.002 |' in text
    assert text[2].startswith('| Softmax | 60.0 (1) |')


def test_the_page_while_learning_rates_are_searched():
    of = dict(learning_rates=[1e-3], search_options={'train_cfg.max_epochs': 2}, command='python')
    grid = grids.build(dict(TINY, **of))
    search = grid.search()[0]
    results = page.Results(grid, {search.name: record(grid, search, 50)})
    text = page.table(results)
    assert text[0].startswith('Learning rates') and '| Softmax | 50.0 | 0.001 |' in text
    assert '- Not run yet: `Softmax`, `Hydra`.' in text
    assert session.pictures(results, '') == []


def test_a_name_may_search_for_longer():
    axes = json.loads(json.dumps(TINY['axes']))
    axes['model']['Hydra']['search_options'] = {'train_cfg.max_epochs': 4}
    of = dict(learning_rates=[1e-3], search_options={'train_cfg.max_epochs': 2}, axes=axes)
    soft, hydra = grids.build(dict(TINY, **of)).search()
    assert [run.load().train_cfg.max_epochs for run in (soft, hydra)] == [2, 4]


def test_the_newest_record_with_the_settings_counts(tmp_path):
    """Those of other settings, taken from docs/studies later, do not hide it."""
    file = tmp_path / records.FILE
    for settings, score in (('1', 5), ('2', 6), ('2', 7), ('1', 8)):
        records.append(file, dict(run='a', settings=settings, score=score))
    assert records.read(file, dict(a='2'))['a']['score'] == 7
    assert records.stale(file, dict(a='2')) == [] and records.stale(file, dict(a='3')) == ['a']


def test_missing_weights_are_trained_again(tmp_path, monkeypatch):
    """If asked; runs that have failed keep none under the name of the result."""
    of = dict(learning_rates=[1e-3], search_options={'train_cfg.max_epochs': 2})
    grid = grids.build(dict(TINY, **of))
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})
    made, fails = [], ['Softmax_lr0.001_seed0']

    def execute_all(todo, folder, workers):
        for run, settings in todo:
            made.append(run.name)
            if not run.search:
                path = execution.weights_path(folder, run)
                execution.save_checkpoint(path, {'a': torch.zeros(1)}, dict(settings=settings))
            failed = dict(error='no luck') if run.name in fails else {}
            new = record(grid, run, 50, settings=settings, **failed)
            yield (run, settings), {k: v for k, v in new.items() if not (failed and k == 'metrics')}

    monkeypatch.setattr(session.pool, 'execute_all', execute_all)
    (tmp_path / 'weights').mkdir()

    def trained(**options):
        made.clear()
        session.Session(grid, tmp_path).train(1, **options)
        return [name for name in made if 'search' not in name]

    both = ['Softmax_lr0.001_seed0', 'Hydra_lr0.001_seed0']
    assert trained() == both
    names = {path.name for path in (tmp_path / 'weights').iterdir()}
    assert names == {'Softmax_lr0.001_seed0.pth', 'Hydra_seed0.pth'}
    fails.clear()
    assert trained() == both[:1]
    (tmp_path / 'weights' / 'Hydra_seed0.pth').unlink()
    # What the training of the weights has left when it was interrupted; all else starts anew.
    run = next(run for run in grid.runs({'Hydra': 1e-3}) if run.point == 'Hydra')
    here = execution.runs_folder(tmp_path, run, run.settings())
    here.mkdir(parents=True)
    left = [here / name for name in ('interrupted.pth', 'last_checkpoint')]
    monkeypatch.setattr(session, 'clean', lambda of, *args: cleaned.append(of.name))
    cleaned = []
    assert trained(weights=True) == both[1:] and cleaned.count(both[1]) == 1  # at its end
    assert trained(weights=True) == []
    for path in left:
        path.touch()
    execution.clean(run, tmp_path, run.settings())
    assert [*here.iterdir()] == [] and trained() == []


def test_a_run_of_two_sessions_names_both_commits(tmp_path):
    assert execution.all_commits(tmp_path, 'a') == ['a']
    assert (
        execution.all_commits(tmp_path, 'b') == execution.all_commits(tmp_path, 'a') == ['a', 'b']
    )


def test_a_run_names_a_commit_that_was_made_meanwhile(tmp_path, monkeypatch):
    (run, *_) = grids.build(dict(TINY)).runs()
    monkeypatch.setattr(execution, 'COMMIT', 'a')
    monkeypatch.setattr(execution, 'commit', lambda: 'b, with changes')
    monkeypatch.setattr(type(run), 'load', lambda _: 1 / 0)
    record = execution.execute(run, tmp_path, 's')
    assert record['commit'] == 'a; b, with changes' and 'ZeroDivisionError' in record['error']


def test_published_runs_count_as_done(tmp_path, monkeypatch):
    """Those with the same settings; nothing is recorded twice."""
    grid = grids.build(dict(TINY))
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})
    monkeypatch.setattr(session, 'COMMITTED', tmp_path)
    soft, hydra = grid.runs()
    found = [record(grid, soft, 70, settings=soft.settings()), record(grid, hydra, 60)]
    (tmp_path / 'tiny.json').write_text(json.dumps(dict(records=found)))
    study, made = session.Session(grid, tmp_path / 'out'), []
    with pytest.raises(GridError, match='there is no docs/studies/other.json yet'):
        session.Session(grids.build(dict(TINY, name='other')), tmp_path).take_committed()
    students = session.Session(grids.build(linearised(iters_a=5)), tmp_path)
    with pytest.raises(GridError, match='need the weights of their teachers'):
        students.take_committed()

    def execute_all(todo, folder, workers):
        made.extend(job[0].name for job in todo)
        return iter(())

    monkeypatch.setattr(session.pool, 'execute_all', execute_all)
    for _ in range(2):
        study.take_committed()
        study.train(1)
    assert made == [hydra.name] * 2 and len([*records.lines(study.file)]) == 2


def test_a_run_without_its_metric_has_failed(tmp_path, monkeypatch):
    """A detector that finds nothing has no AP: an error, and never chosen afterwards."""
    grid = grids.build(dict(TINY, learning_rates=[1e-3, 2e-3]))
    first, second, *_ = grid.search()
    monkeypatch.setattr(execution, 'train', lambda cfg, here: ('x.pth', dict(seconds=1.0), []))
    monkeypatch.setattr(execution, 'save_weights', lambda *_: None)
    for metrics, message in (
        (dict(other=1.0), 'ValueError: split val has no metric accuracy/top1; it has other'),
        ({'accuracy/top1': float('nan')}, 'metric accuracy/top1 is nan, not finite'),
    ):
        monkeypatch.setattr(execution, 'test', lambda *_, of=metrics: of)
        made = execution.execute(first, tmp_path, 's')
        assert message in made['error'] and 'metrics' not in made
        old = record(grid, first, 0, metrics=dict(val=metrics))
        found = {first.name: old, second.name: record(grid, second, 60)}
        assert grids.chosen_rates(grid, found)[first.point][0] == 2e-3
        assert grids.chosen_rates(grid, {first.name: old}) == {}
        assert '| Softmax | no result | 60.0 | 0.002 |' in page.table(page.Results(grid, found))


@pytest.mark.parametrize('seeds', [1, 3])
def test_measured_costs_reach_the_page(tmp_path, monkeypatch, seeds):
    grid = grids.build(dict(TINY, seeds=seeds))
    monkeypatch.setattr(session.costs, 'measure', lambda models, cost: {of: {} for of in models})
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})
    session.Session(grid, tmp_path).measure()
    assert {*page.load(grid, tmp_path, {}, {}).costs} == {'Softmax', 'Hydra', 'facts'}
    with records.lock(tmp_path), pytest.raises(BlockingIOError):
        session.Session(grid, tmp_path).measure()


def test_costs_of_other_settings_are_left_out(tmp_path):
    grid = grids.build(dict(TINY))
    measured = dict(params=1e6, conv_linear=1e9, total=1e9, ms=[1.0, 1.0, 1.0], bytes=1)
    soft, hydra = grid.runs()[:2]
    content = {soft.point: dict(measured, settings=soft.settings())}
    content[hydra.point] = dict(measured, settings='other')
    file = tmp_path / page.COSTS_FILE
    file.write_text(json.dumps(dict(content, facts=dict(commit='C'))))
    assert {*page.load(grid, tmp_path, {}, {}).costs} == {soft.point, 'facts'}
    file.write_text(json.dumps({hydra.point: measured, 'facts': {}}))
    assert page.load(grid, tmp_path, {}, {}).costs == {}


def test_costs_of_some_models_keep_the_others(tmp_path, monkeypatch):
    """If the same machine and commit measured them."""
    content = json.loads(json.dumps(TINY))
    whole = grids.build(content)
    grids.select(content, dict(model=['Softmax']))
    part = grids.build(content)
    monkeypatch.setattr(
        session.costs, 'measure', lambda models, cost: {name: {} for name in models}
    )
    monkeypatch.setattr(grids.Grid, 'refusals', lambda grid: {})

    def measured(grid, commit):
        monkeypatch.setattr(session, 'facts', lambda: dict(commit=commit))
        session.Session(grid, tmp_path).measure()
        found = json.loads((tmp_path / page.COSTS_FILE).read_text())
        assert found.pop('facts') == dict(commit=commit)
        return {*found}

    both, one = ({run.point for run in grid.runs()} for grid in (whole, part))
    assert measured(whole, 'C') == both and len(both) == 2
    assert measured(part, 'C') == both
    assert measured(part, 'D') == one


def test_every_checkpoint_is_checked_before_a_test(tmp_path, monkeypatch):
    """Results that are there can be shown all the same."""
    (tmp_path / 'Softmax_seed0.pth').touch()
    of = dict(checkpoint=f'{tmp_path}/{{model}}_seed{{seed}}.pth', seeds=2)
    monkeypatch.setattr(grids.Grid, 'refusals', lambda self: {})
    grid = grids.build({**TINY, **of})
    study = session.Session(grid, tmp_path)
    with pytest.raises(GridError, match='Softmax_seed1.pth does not exist: train its study first'):
        study.train(jobs=1)
    done = grid.runs()[0]
    records.append(study.file, record(grid, done, 70, settings=done.settings()))
    assert [*study.results().records] == [done.name]


def test_a_training_starts_from_the_weights_of_its_model_and_seed(tmp_path, monkeypatch):
    """They must be there, and other weights make another run."""
    monkeypatch.setattr(grids.Grid, 'refusals', lambda self: {})
    start = f'{tmp_path}/{{model}}_seed{{seed}}.pth'
    grid = grids.build({**TINY, 'load_from': start, 'seeds': 2})
    soft, hydra, second, _ = grid.runs()
    starts = [run.load().load_from for run in (soft, hydra, second)]
    names = ['Softmax_seed0', 'Hydra_seed0', 'Softmax_seed1']
    assert starts == [f'{tmp_path}/{name}.pth' for name in names]
    assert soft.load('val').load_from is None
    missing = soft.settings()
    with pytest.raises(GridError, match='Softmax_seed0.pth does not exist: train its study first'):
        session.Session(grid, tmp_path).train(jobs=1)
    for content in (b'a', b'b'):
        (tmp_path / 'Softmax_seed0.pth').write_bytes(content)
        assert missing != soft.settings()
        missing = soft.settings()
    assert grids.build(dict(TINY)).runs()[0].settings() != missing


def test_an_entry_starts_from_weights_of_its_own():
    """The others start from those of the grid; all paths begin in one folder."""
    soft, hydra = TINY['axes']['model'].values()
    axes = {'model': dict(Softmax=soft, Hydra=dict(hydra, load_from='b/seed{seed}.pth'))}
    content = dict(TINY, axes=axes)
    for of, first in (
        (content, None),
        (dict(content, load_from='a/{model}.pth'), 'w/a/Softmax.pth'),
    ):
        starts = [run.load_from for run in grids.build(of, weights_root='w').runs()]
        assert starts == [first, 'w/b/seed0.pth']
    tested = grids.build(dict(content, checkpoint='c'), weights_root='w').runs()
    assert [(run.checkpoint, run.load_from) for run in tested] == [('w/c', None)] * 2
    axes['model']['Hydra']['load_from'] = 'tiny/weights/Softmax_seed0.pth'
    with pytest.raises(GridError, match='train it first, with --only model=Softmax$'):
        grids.build(content, weights_root='w').check_weights()


def test_a_run_records_what_hooks_have_logged(tmp_path, monkeypatch):
    """Numbers of the training itself are not replaced."""
    content = dict(TINY, metrics={'js': dict(key='js', split='train')})
    run = grids.build(content).runs()[0]
    logged = dict(js=[[1, 0.5], [9, 0.25]], loss=[[9, 7.0]])
    trained = ('x.pth', dict(loss=1.0, iterations=9, seconds=1.0), [[9, 1.0]])
    monkeypatch.setattr(execution, 'train', lambda cfg, here: trained)
    monkeypatch.setattr(execution, 'test', lambda *args: {})
    monkeypatch.setattr(execution, 'save_weights', lambda *args: None)
    monkeypatch.setattr(execution, 'logged_by_hooks', lambda here: logged)
    monkeypatch.setattr(execution.costs, 'measure', lambda models, cost: {run.name: {}})
    made = execution.execute(run, tmp_path, 'hash')
    assert 'error' not in made and made['series'] == logged
    assert made['metrics']['train'] == dict(js=0.25, loss=1.0, iterations=9)


def test_weights_of_another_rate_are_removed(tmp_path, monkeypatch, capsys):
    grid = grids.build(dict(TINY, learning_rates=[1e-3, 2e-3]))
    monkeypatch.setattr(grids.Grid, 'refusals', lambda self: {})
    study = session.Session(grid, tmp_path)
    soft = grid.search()[:2]
    for run, number in zip(soft, (70, 60)):
        records.append(study.file, record(grid, run, number, settings=run.settings()))
    plain = tmp_path / 'weights' / 'Softmax_seed0.pth'
    plain.parent.mkdir()
    for run, kept in ((soft[0], True), (soft[1], False)):
        made_by = dict(run=run.name, settings=run.settings())
        execution.save_checkpoint(plain, {'a': torch.zeros(1)}, made_by)
        study._keep_weights()
        assert plain.is_file() == kept
    assert 'remove the line of Softmax_lr0.001_seed0 from' in capsys.readouterr().out


def test_pages_show_what_their_records_give(root: Path, tmp_path: Path):
    """The block of a study in docs/ has what its JSON file gives, or says that there is none."""
    pages = '\n'.join(path.read_text() for path in (root / 'docs').glob('*.md'))
    blocks = dict(re.findall(r'<!-- study: (\w+) -->\n(.*?)<!-- end of study -->', pages, re.S))
    sources = [*grids.GRIDS.glob('*.yml'), root / 'benchmarks/zoo/zoo.yml']
    assert {source.stem for source in sources} == set(blocks)
    for source in sources:
        records = root / f'docs/studies/{source.stem}.json'
        if not records.is_file():
            assert re.search(r'^No results .*yet: `.+`', blocks[source.stem].strip()), source.stem
            continue
        content = plan.content(seeds=plan.SEEDS) if source.stem == 'zoo' else grids.read(source)
        content.pop('sizes', None)
        grid = grids.build(content)
        shown = session.committed(grid, records)
        assert '\n'.join(shown) in blocks[source.stem], source.stem
        session.draw(session.published(grid, records), tmp_path, f'{grid.name}_')
        for picture in re.findall(r'\(images/(.*\.png)\)', blocks[source.stem]):
            check_picture(root / 'docs/images' / picture, tmp_path / picture, records)


def test_rows_of_a_picture_differ():
    lines = [(of['color'], of['linestyle']) for of in islice(charts.styles('-'), 24)]
    assert len({*lines}) == 24
    assert {of['linestyle'] for of in islice(charts.styles(), 24)} == {''}


def test_the_hours_of_the_page_are_those_of_the_records(root: Path):
    page, total = (root / 'docs/studies.md').read_text(), 0.0
    shown = dict(re.findall(r'^\| `(\w+)` \|.*\| ([\d.]+) \|$', page, re.M))
    assert {*shown} == {path.stem for path in (root / 'docs/studies').glob('*.json')}
    for name, hours in shown.items():
        records = json.loads((root / f'docs/studies/{name}.json').read_text())['records']
        # `wall` is of the last session of a run alone.
        seconds = sum(max(of['wall'], of.get('seconds', 0)) for of in records if 'metrics' in of)
        total += seconds / 3600
        assert hours == f'{seconds / 3600:.1f}', name
    assert f'All runs on these pages took {total:.0f} hours of one core.' in page


def test_a_published_study_is_regenerated(tmp_path, monkeypatch):
    grid = grids.build(dict(TINY, command='python'))
    runs = grid.runs()
    folder, docs = tmp_path / 'out', tmp_path / 'docs'
    for part in ('studies', 'images'):
        (docs / part).mkdir(parents=True)
    monkeypatch.setattr(session, 'COMMITTED', docs / 'studies')
    monkeypatch.setattr(session, 'IMAGES', docs / 'images')
    for run, score in zip(runs, (70, 65)):
        records.append(folder / records.FILE, record(grid, run, score))
    target = docs / 'studies.md'
    target.write_text(f'before\n{page.begin(grid)}\nold\n{page.END}\nafter\n')
    results = page.load(grid, folder, {run.name: 's' for run in runs}, {})
    session.publish(results, target)
    text = target.read_text()
    assert text.startswith('before\n') and text.endswith('after\n') and 'old' not in text
    shown = session.committed(grid, docs / 'studies' / 'tiny.json')
    assert '\n'.join(shown) in text and '| Softmax | 70.0 (1) |' in text
    assert {path.name for path in (docs / 'images').iterdir()} == {
        f'tiny_{chart}.png' for chart in TINY['page']['charts']
    }


def test_publishing_keeps_what_only_the_committed_file_has(tmp_path, monkeypatch):
    grid = grids.build(dict(TINY, command='python'))
    first, second = grid.runs()
    (tmp_path / 'studies').mkdir()
    monkeypatch.setattr(session, 'COMMITTED', tmp_path / 'studies')
    monkeypatch.setattr(session, 'redraw', lambda *_: None)
    target = tmp_path / 'studies.md'
    target.write_text(f'{page.begin(grid)}\n{page.END}\n')
    file = tmp_path / 'studies' / 'tiny.json'

    def publish(*runs, settings=None, costs=None):
        made = {
            run.name: record(grid, run, 70, settings=settings or run.settings()) for run in runs
        }
        session.publish(page.Results(grid, made, costs=costs or {}), target)
        return json.loads(file.read_text())

    costs = {run.point: {'settings': run.settings(weights=False)} for run in (first, second)}
    costs['facts'] = 1
    assert publish(first, second, costs=costs)['costs'] == costs
    assert publish(first, second)['costs'] == costs
    with pytest.raises(GridError, match=r'the costs of 1 models \(Hydra\): measure all in one go'):
        publish(first, second, costs={'facts': 2, first.point: costs[first.point]})
    # Costs of a model that has changed count no more.
    stale = {'facts': 1, first.point: {'settings': 'older'}}
    assert publish(first, second, costs={**stale, second.point: costs[second.point]})
    assert publish(first, second)['costs'] == {'facts': 1, second.point: costs[second.point]}
    with pytest.raises(GridError, match=r'drop 1 results of docs/studies/tiny.json \(Hydra_seed0'):
        publish(first)
    assert len(json.loads(file.read_text())['records']) == 2
    # What was made with other settings counts no more.
    assert len(publish(first, second, settings='older')['records']) == 2
    assert len(publish(first)['records']) == 1
    # Errors are no results, and seeds that the grid no longer has are not wanted.
    third = grid.run(second.values, 2)
    made = [record(grid, run, 70, settings=run.settings()) for run in (first, third)]
    failed = dict(run=second.name, values=second.values, settings='s', error='no luck')
    file.write_text(json.dumps(dict(costs={}, records=[*made, failed])))
    assert len(publish(first)['records']) == 1
    # Tests of weights that are not here.
    grid = grids.build(dict(TINY, command='python', checkpoint='{model}.pth'), weights_root='w')
    first, second = grid.runs()
    assert len(publish(first, second)['records']) == 2
    made = publish(second, settings='newer')['records']
    assert [(of['run'], of['settings'] == 'newer') for of in made] == [
        (first.name, False),
        (second.name, True),
    ]
    assert first.settings() == first.settings(weights=False)


def test_searches_and_their_rates_are_kept_when_published(tmp_path, monkeypatch):
    """In a folder without the search the rate is that of the committed one."""
    of = dict(learning_rates=[1e-3, 2e-3], search_options={'train_cfg.max_epochs': 2})
    grid = grids.build(dict(TINY, **of, command='python'))
    (tmp_path / 'studies').mkdir()
    monkeypatch.setattr(session, 'COMMITTED', tmp_path / 'studies')
    monkeypatch.setattr(session, 'redraw', lambda *_: None)
    target = tmp_path / 'studies.md'
    target.write_text(f'{page.begin(grid)}\n{page.END}\n')
    slow, fast, *_ = grid.search()
    chosen, other = (grid.run(slow.values, 0, rate) for rate in (2e-3, 1e-3))
    runs, made = (slow, fast, chosen, other), {}
    for run, score in zip(runs, (60, 70, 75, 65)):
        made[run.name] = record(grid, run, score, settings=run.settings())

    def publish(*runs):
        session.publish(page.Results(grid, {run.name: made[run.name] for run in runs}), target)
        records = json.loads((tmp_path / 'studies' / 'tiny.json').read_text())['records']
        return [record['run'] for record in records]

    assert len(publish(*runs)) == 4
    # The other rate is not that of the result.
    with pytest.raises(GridError, match=rf'drop 2 results .*\({slow.name}, {fast.name}\)'):
        publish(chosen)
    with pytest.raises(GridError, match=rf'drop 1 results .*\({chosen.name}\)'):
        publish(slow, fast)
    assert len(publish(slow, fast, chosen)) == 3


def test_nothing_is_published_without_a_result_or_a_place(tmp_path, monkeypatch):
    grid = grids.build(dict(TINY))
    monkeypatch.setattr(session, 'COMMITTED', tmp_path / 'studies')
    target = tmp_path / 'studies.md'
    target.write_text('no place')
    with pytest.raises(GridError, match='tiny has no result for --docs'):
        session.publish(page.Results(grid, {}), target)
    run = grid.runs()[0]
    with pytest.raises(GridError, match='the page must have one line <!-- study: tiny'):
        session.publish(page.Results(grid, {run.name: record(grid, run, 1)}), target)
    assert [*tmp_path.iterdir()] == [target]


def test_a_cut_line_of_a_log_is_passed_over(tmp_path):
    file = tmp_path / '1' / 'vis_data' / 'scalars.json'
    file.parent.mkdir(parents=True)
    whole = b'{"step": 5, "loss": 1.0, "time": 0.1}\n'
    file.write_bytes(whole + b'[1]\n\xff\xfe\n{"step": 10, "lo')
    assert [of['step'] for of in execution.scalars(tmp_path)] == [5]


def test_weights_of_the_package_are_tested(tmp_path):
    grid = grids.build(dict(TINY, checkpoint='mmlinattn://semantic-fpn_ravlt-nano_shapes'))
    name = 'semantic-fpn_ravlt-nano_shapes'
    assert {run.checkpoint for run in grid.runs()} == {package_weights()[name]}
    grid.check_weights()
    with pytest.raises(GridError, match='mmlinattn://nothing: the package has the weights'):
        grids.build(dict(TINY, checkpoint='mmlinattn://nothing')).runs()
    missing = grids.build(dict(TINY, checkpoint='a.pth'), weights_root='')
    with pytest.raises(GridError, match='a.pth does not exist: train its study first'):
        missing.check_weights()


@pytest.mark.parametrize(
    'error', [EOFError(), ConnectionResetError(), OSError('got end of file during message')]
)
def test_a_worker_that_ends_is_an_error_of_its_run(error, monkeypatch):
    def end(*_):
        raise error

    began, sent = [], []

    def begin(worker):
        began.append(1)
        worker.pipe = SimpleNamespace(send=sent.append if len(began) > 1 else end, recv=end)
        worker.process = SimpleNamespace(join=lambda: None, exitcode=-9)

    monkeypatch.setattr(pool.Worker, 'begin', begin)
    worker, run = pool.Worker(Path()), grids.build(dict(TINY)).runs()[0]
    if isinstance(error, OSError):  # before it has the job: a new one gets it
        worker.start((run, 's'))
        assert sent == [(run, 's')] and len(began) == 2
    worker.job = run, 's'
    assert worker.result()['error'] == 'the process ended with code -9'


def test_records_survive_a_cut_line_and_other_settings(tmp_path):
    path = tmp_path / records.FILE
    records.append(path, dict(run='a', settings='1', metrics={}))
    with path.open('a') as file:
        file.write('{"run": "b", "sett')
    records.append(path, dict(run='c', settings='1'))
    assert [of['run'] for of in records.lines(path)] == ['a', 'c']
    wanted = dict(a='1', b='1', c='2')
    assert [*records.read(path, wanted)] == ['a'] and records.stale(path, wanted) == ['c']
    records.append(path, dict(run='a', settings='1', error='the repetition for its weights'))
    assert 'error' not in records.read(path, wanted)['a']
    records.append(path, dict(run='a', settings='1', metrics={}, seed=1))
    assert records.read(path, wanted)['a']['seed'] == 1
    with records.lock(tmp_path), pytest.raises(BlockingIOError, match='in use by another run'):
        records.lock(tmp_path)


def test_the_settings_are_those_of_the_result():
    grid = grids.build(dict(TINY))
    run = grid.runs()[0]
    moved = grids.build(dict(TINY), '/elsewhere').runs()[0]
    assert run.settings() == moved.settings()  # the folder of the data does not matter
    assert moved.load().train_dataloader.dataset.data_root == '/elsewhere/shapes/imagenet'
    other = grids.build(dict(TINY, options={**TINY['options'], 'train_cfg.max_epochs': 4}))
    settings = [run.settings(), grid.run(run.values, 1).settings(), other.runs()[0].settings()]
    settings.append(grid.run(run.values, 0, 3e-3).settings())
    assert len({*settings}) == 4
    searched = grid.run(run.values, 0, 3e-3).load()
    assert searched.optim_wrapper.optimizer.lr == searched.param_scheduler[0].eta_max == 3e-3


def changed(**changes):
    return yaml.safe_dump({**TINY, **changes}, sort_keys=False)


BROKEN = dict(Soft=dict(options={'model.backbone.attn_cfg': dict(type='SoftmxAttention')}))


LAST_9 = linearised(keep_softmax=['last9'])
ONE = dict(model={'Soft': dict(options=None)})  # an empty entry of YAML
TWO_AXES = dict(model={'a': {}}, size={'b': {}})
TEST = dict(splits=dict(test={}), metrics={'a': dict(key='b')})


@pytest.mark.parametrize(
    'text, message',
    [
        (changed(axes=dict(model=BROKEN)), 'Soft: .*SoftmxAttention'),
        (changed(config='configs/zoo/deit-nan_shapes.py'), "config 'configs/zoo/deit-nan_shapes"),
        (changed(), "data/shapes/imagenet/' does not exist"),
        (changed(axs={}), "unknown key 'axs'; did you mean axes"),
        (changed(seeds=0), 'seeds must be a positive integer, got 0'),
        (changed(learning_rates=[1e-3, 1e-3]), 'learning_rates must be different numbers'),
        (changed(page=dict(rows='modl')), "page.rows: no axis 'modl'"),
        (changed(metrics={'a': dict(kee='b')}), 'metrics: .*kee'),
        (changed(metrics={'a': dict(key='b', split='tset')}), "metrics: a: no split 'tset'"),
        (changed(metrics=[1]), r'metrics must be a mapping, got \[1\]'),
        (changed(metrics={'ms an image': dict(key='b', split='val')}), 'that of a measured cost'),
        (changed(axes=dict(model={'a/b': {}})), "'a/b' is no name of a file"),
        (changed(axes=dict(model={'a': [1]})), r"model 'a' must be a mapping, got \[1\]"),
        (changed(axes=dict(model={'a': dict(shape=[1])})), "'a': shape must be .height, width"),
        (changed(axes=TWO_AXES), "page shows no axis 'size': add it as rows, columns or tables"),
        (
            changed(
                axes=dict(model={'a': {}, 'a_b': {}}, size={'b_c': {}, 'c': {}}),
                page=dict(rows='model', columns='size'),
            ),
            "'a_b_c_seed0' is the name of two runs",
        ),
        (changed(page=['model']), r"page must be a mapping, got \['model'\]"),
        (changed(page=dict(columns='model')), 'page has no rows'),
        (changed(page=dict(rows='model', columns='model')), "'model' is shown already"),
        (changed(page=dict(rows='model', chart=[])), "page has the unknown key 'chart'"),
        (changed(page=dict(rows='model', charts=['curve'])), "page.charts: 'curve' is unknown"),
        (changed(page=dict(rows='model', charts=['columns'])), "'columns' needs page.columns"),
        (changed(page=dict(rows='model', quantities=['ms'])), "page.quantities: 'ms' is unknown"),
        (changed(page=dict(rows='model', charts=['spectra'])), "'spectra' needs rank"),
        (changed(page=dict(rows='model', charts=['layers'])), "'layers' needs rank"),
        (changed(page=dict(rows='model', charts=['ring_weights'])), "'ring_weights' is of one"),
        (changed(rank=dict(image='a')), "rank has the unknown key 'image'; did you mean images"),
        (changed(rank=dict(num_images=2)), 'rank has no images: name a folder'),
        (changed(rank=dict(images='a', num_images=0)), 'rank.num_images must be a positive'),
        (changed(rank=dict(images='a', tolerance=1)), 'rank.tolerance must be between 0 and 1'),
        (changed(rank=dict(images='data/no')), 'rank.images: there is no folder .*data/no'),
        (changed(rank=dict(images='a'), checkpoint='b'), 'rank needs a training'),
        (changed(**linearised(), rank=dict(images='a')), "'S' is linear.* leave out rank"),
        (changed(splits=dict(rank={})), "splits: 'rank' is no name of a split"),
        (changed(splits=['val']), r"splits must be a mapping, got \['val'\]"),
        (changed(options=['a']), r"options must be a mapping, got \['a'\]"),
        (changed(quick=['a']), r"quick must be a mapping, got \['a'\]"),
        (changed(learning_rates=1e-3), 'learning_rates must be .* got 0.001'),
        (changed(learning_rates=[float('nan')]), 'finite and positive, got .nan'),
        (changed(learning_rates=[-1e-3]), 'finite and positive, got .-0.001'),
        (changed(learning_rates=[1e-3], **TEST), 'learning_rates are chosen on the split val'),
        (changed(cost=dict(shap=[1, 1])), "cost has the unknown key 'shap'"),
        (changed(more_seeds=dict(model=dict(Hydr=2))), "more_seeds.model has the unknown key 'Hyd"),
        (changed(config='{modl}.py'), 'config has the unknown {modl}; known are model'),
        (changed(checkpoint='{model'), "checkpoint is '{model': "),
        (changed(load_from='{seeds}'), 'load_from has the unknown {seeds}; known are model, seed'),
        (changed(load_from='a', checkpoint='b'), 'load_from is trained: remove one'),
        (changed(load_from='a', rank=dict(images='data')), 'but load_from is given: remove one'),
        (
            changed(axes=dict(model=dict(Soft=dict(load_from='{no}')))),
            "model 'Soft': load_from has the unknown {no}; known are",
        ),
        (changed(**linearised(), load_from='a'), "'S' is linear.* leave out load_from"),
        (
            changed(axes=ONE, page=dict(rows='model', charts=['ring_weights'])),
            'Soft: the chart ring_weights needs RippleWeightsHook',
        ),
        (
            changed(axes=dict(model={'a': {}, 'b': dict(linearize=dict(teacher='c'))})),
            "model 'b': linearize: teacher 'c' is no trained name of this axis .*; known are a",
        ),
        (changed(**linearised(iters_a=-1)), "'S': linearize: iters_a must be an integer from 0"),
        (changed(**linearised(lr_a=-1)), 'linearize --attn MALA --lr-a -1: see the error above'),
        (changed(**linearised(), more_seeds=dict(model=dict(S=2))), "'S' is linear.* more_seeds"),
        (
            changed(axes=dict(model={'a': {}, 'b': dict(options={}, linearize=dict(teacher='a'))})),
            "'b' is a linearised model, which has the unknown key 'options'",
        ),
        (changed(page=dict(rows='model', document='x.md')), "must be a file in docs/, got 'x.md'"),
        (changed(**linearised(iter_a=1)), "'S': linearize has the unknown key 'iter_a'; did you"),
        (changed(**linearised(), learning_rates=[1e-3]), "'S' is linearised from the weights of"),
        (
            changed(axes=dict(model=dict(reversed(LAST_9['axes']['model'].items())))),
            "S: .* names layer 'last9', but there",
        ),
        (changed(axes=dict(model='bad.yml')), 'axis model names bad.yml, which needs this file'),
        (f'{changed()}\nseeds: 1\nseeds: 2\n', "'seeds' occurs twice in the mapping of line 1"),
        ('name: a', 'a grid is a mapping with axes'),
    ],
)
def test_bad_grids(tmp_path, text, message):
    path = tmp_path / 'bad.yml'
    path.write_text(text)
    with pytest.raises(GridError, match=message):
        grids.build(grids.read(path), str(tmp_path / 'data')).refusals()


def test_a_grid_that_is_not_there(tmp_path, capsys):
    assert end_of(main, [str(tmp_path / 'none.yml'), '--out', str(tmp_path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith('error: ') and 'No such file' in line
    for words, message in (
        (['camvid', '--jobs', '0'], '--jobs must be positive, got 0'),
        (['camvid', '--seeds', '0'], '--seeds must be positive, got 0'),
        (['camvid', '--docs', '--quick'], '--docs shows the complete study: leave out'),
        (['camvid', '--redraw', '--seeds', '1'], '--redraw shows the complete study: leave out'),
        (['camvid', '--only', 'model'], "--only must be AXIS=NAME,NAME, got 'model'"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err


def test_a_number_of_seeds(tmp_path, monkeypatch):
    file, seen = tmp_path / 'tiny.yml', []
    file.write_text(changed(seeds=3, more_seeds=dict(model=dict(Hydra=4))))
    monkeypatch.setattr('benchmarks.study.__main__.conduct', lambda grid, *_: seen.append(grid))
    main([str(file)])
    main([str(file), '--seeds', '1'])
    assert [len(grid.runs()) for grid in seen] == [7, 2]
    assert seen[1].command.endswith('--seeds=1')


def test_names_of_an_axis():
    content = json.loads(json.dumps(TINY))
    grids.select(content, dict(model=['Hydra']))
    assert [*content['axes']['model']] == ['Hydra']
    with pytest.raises(GridError, match="model 'Hydr' is unknown; did you mean Hydra"):
        grids.select(content, dict(model=['Hydr']))
    with pytest.raises(GridError, match="no axis 'modl'; known are model"):
        grids.select(content, dict(modl=['Hydra']))


def test_only_some_names_of_another_grid(tmp_path):
    (tmp_path / 'tiny.yml').write_text(changed())
    path = tmp_path / 'some.yml'
    borrowed = dict(axes=dict(model='tiny.yml'), only=dict(model=['Hydra']))
    path.write_text(changed(**borrowed, quick=dict(axes=dict(model=['Softmax']))))
    assert [*grids.read(path)['axes']['model']] == ['Hydra']
    assert [*grids.read(path, quick=True)['axes']['model']] == ['Softmax']
    path.write_text(changed(**borrowed, quick=dict(seeds=1)))
    assert [*grids.read(path, quick=True)['axes']['model']] == ['Hydra']
    path.write_text(changed(only=['Hydra']))
    with pytest.raises(GridError, match='only must be a mapping'):
        grids.read(path)


@pytest.mark.parametrize('quick', [False, True])
@pytest.mark.parametrize('path', sorted(grids.GRIDS.glob('*.yml')), ids=lambda path: path.stem)
def test_the_grids_of_the_repository(path, quick):
    grid = grids.build(grids.read(path, quick))
    assert grid.name == path.stem + '-quick' * quick and grid.runs()
    assert len(grid.learning_rates) in ((0, 2) if quick else (0, 3))


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='a trial of every grid, some minutes: make test-long')
def test_every_study_in_short(root, tmp_path):
    places = (root / 'data', root.parent / 'shared' / 'data')
    found = [place for place in places if (place / 'bccd').is_dir() and (place / 'camvid').is_dir()]
    if not found:
        pytest.skip('CamVid and BCCD are not in data/ (docs/datasets.md)')
    data = tmp_path / 'data'
    shapes.generate(data / 'shapes', 60, 20, workers=1)
    for name in ('bccd', 'camvid'):
        (data / name).symlink_to((found[0] / name).resolve())
    names = sorted(path.stem for path in grids.GRIDS.glob('*.yml'))
    assert names.index('camvid') < names.index('resolution')  # which tests its weights
    for name in names:
        out = tmp_path / f'{name}-quick'
        assert main([name, '--quick', '--out', str(out), '--data-root', str(data)]) == 0
        text = (out / 'results.md').read_text()
        assert 'failed' not in text and 'ot run' not in text

"""The comparison of all attentions, with a few images and one epoch."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

pytest.importorskip(
    'mmpretrain', reason='the zoo trains classifiers of MMPretrain, the extra "cls"'
)

from benchmarks.zoo import __main__ as zoo
from benchmarks.zoo import costs, data, page, plan, pool, training
from mmlinattn.checkpoints import load_state_dict
from mmlinattn.models.layers import BaseAttention, registered_subclasses

TWO = ('SoftmaxAttention', 'HydraAttention')


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*arguments): the exit code of a tiny zoo, and the names of what was trained."""
    # To lay the config's text out takes longer than to train for a few steps.
    unformatted = property(lambda config: False, lambda config, value: None)
    monkeypatch.setattr(Config, '_format_python_code', unformatted, raising=False)
    train, trained = training.train, []

    def watched(job, *args):
        trained.append(job.name)
        return train(job, *args)

    monkeypatch.setattr(pool, 'train', watched)

    def call(*arguments, attentions=TWO, data=('shapes',)):
        trained.clear()
        options = ['--tiny', '--workers', '1', '--seeds', '1', '--out', str(tmp_path)]
        options += ['--hosts', 'deit-nano', '--data', *data, '--attentions', *attentions]
        return zoo.main([*options, *arguments]), list(trained)

    return call


def interrupt_at(monkeypatch, number):
    """The training of this number is interrupted, as by Ctrl-C."""
    watched, begun = pool.train, []

    def interrupted(*args):
        begun.append(args)
        if len(begun) == number:
            raise KeyboardInterrupt
        return watched(*args)

    monkeypatch.setattr(pool, 'train', interrupted)


def test_a_killed_run_goes_on_and_a_changed_setting_is_noticed(run, tmp_path, monkeypatch, capsys):
    soft, hydra = (f'deit-nano_shapes_{name}_seed0' for name in TWO)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, 2)
        run()
    assert [path.stem for path in (tmp_path / 'trainings').iterdir()] == [soft]
    assert run() == (0, [hydra])
    first = (tmp_path / 'trainings' / f'{soft}.json').read_text()
    assert run() == (0, [])
    # An option of one attention.
    monkeypatch.setitem(plan.OPTIONS, 'HydraAttention', dict(rotary=True))
    capsys.readouterr()
    assert run('--seeds', '2') == (0, [hydra, soft.replace('seed0', 'seed1')])
    assert '3 trainings, 1 are done\n1 were made with other settings' in capsys.readouterr().out
    assert (tmp_path / 'trainings' / f'{soft}.json').read_text() == first
    # Of all: what is on the page is of these settings, or is not there.
    monkeypatch.setattr(plan, 'TINY', plan.Sizes(**dict(vars(plan.TINY), epochs=2)))
    monkeypatch.setattr(zoo, 'PAGE', tmp_path / 'zoo.md')
    monkeypatch.setattr(zoo, 'CHART', tmp_path / 'images' / 'zoo.png')
    zoo.PAGE.write_text(f'before\n{page.BEGIN}\nold\n{page.END}\nafter\n')
    assert run('--docs') == (0, [])
    text = zoo.PAGE.read_text()
    assert text.startswith('before\n') and text.endswith('after\n') and 'old' not in text
    assert '| `SoftmaxAttention` | not run | 0.70 |' in text


def test_a_failed_training_is_named_and_tried_again(run, tmp_path, monkeypatch, capsys):
    from_cfg = training.PluginRunner.from_cfg

    def broken(cfg):
        if cfg.model.backbone.attn_cfg.type == 'HydraAttention':
            raise RuntimeError('out of luck')
        return from_cfg(cfg)

    with monkeypatch.context() as patch:
        patch.setattr(training.PluginRunner, 'from_cfg', staticmethod(broken))
        code, trained = run()
    assert code == 1 and len(trained) == 2
    text = (tmp_path / 'results.md').read_text()
    assert '| `HydraAttention` | failed |' in text
    line = '- DeiT-nano, Shapes, `HydraAttention`, seed 0: RuntimeError: out of luck'
    assert line in text.splitlines()
    assert run() == (0, ['deit-nano_shapes_HydraAttention_seed0'])
    assert 'out of luck' not in (tmp_path / 'results.md').read_text()


def test_data_that_are_not_there_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(data, 'BCCD', tmp_path / 'nowhere')
    code, trained = run(attentions=['HydraAttention'], data=plan.DATA)
    assert (code, trained) == (0, ['deit-nano_shapes_HydraAttention_seed0'])
    text = (tmp_path / 'results.md').read_text()
    assert '(1) | no data | 0.70 |' in text and '- BCCD cells: skipped, as BCCD is not in' in text


def test_the_score_is_that_of_the_weights(run, tmp_path, monkeypatch):
    """Images read, normalised and counted by hand."""
    sizes = plan.Sizes(drawn=12, drawn_val=12, cells=2, cells_val=2, epochs=2)
    monkeypatch.setattr(plan, 'TINY', sizes)
    assert run(attentions=['AdditiveAttention'])[0] == 0
    job = plan.Job('deit-nano', 'shapes', 'AdditiveAttention', 0)
    record = json.loads(training.record_path(tmp_path, job).read_text())
    cfg = plan.config(job, tmp_path, sizes)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model).eval()
    model.load_state_dict(load_state_dict(training.weights_path(tmp_path, job))[0])
    root = tmp_path / 'data/shapes-12-12/imagenet/val'
    mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    right = []
    for label, folder in enumerate(sorted(root.iterdir())):
        for file in folder.iterdir():
            image = (cv2.imread(str(file))[..., ::-1] - mean) / std
            x = torch.from_numpy(image).permute(2, 0, 1)[None].float()
            with torch.no_grad():
                right.append(int(model(x, mode='tensor').argmax()) == label)
    assert record['accuracy'] == pytest.approx(100 * np.mean(right), abs=1e-3)
    assert record['images_val'] == len(right) and record['iterations'] == 4


def test_every_attention_is_there_and_refusals_have_a_reason():
    names = plan.attentions()
    kinds = {
        n: c
        for n, c in registered_subclasses(BaseAttention).items()
        if 'mmlinattn.' in c.__module__
    }
    assert sorted(names) == sorted(kinds) and names[: len(plan.MAIN)] == list(plan.MAIN)
    jobs = plan.jobs(plan.HOSTS, plan.DATA, names, 3)
    assert len(jobs) == len(set(jobs)) == 4 * (len(names) + 2 * len(plan.MAIN))
    kept, refused = plan.split(jobs)
    without = {name for name, kind in kinds.items() if not kind.supports_extra_tokens}
    assert set(refused) == {('deit-nano', name) for name in without}
    assert all('does not support extra tokens' in why for why in refused.values())
    assert {(job.host, job.attention) for job in jobs} == {
        *refused,
        *((job.host, job.attention) for job in kept),
    }
    assert not set(plan.OPTIONS) - set(names)


def record(host, data, attention, seed, accuracy=None, **other):
    found = plan.Job(host, data, attention, seed).fields()
    facts = dict(machine='M', versions='V', commit='C', seconds=90.0)
    sizes = dict(images=20, images_val=100, epochs=2)
    return found if accuracy is None else {**found, 'accuracy': accuracy, **facts, **sizes, **other}


@pytest.fixture
def example():
    cost = dict(params=1_234_567, ms=[2.0, 1.5, 2.1], bytes=3 * 2**20)
    records = [
        *(record('deit-nano', 'shapes', 'RALA', i, value) for i, value in enumerate((70, 72, 77))),
        record('deit-nano', 'shapes', 'HydraAttention', 0, 65.04),
        record('ravlt-nano', 'shapes', 'RALA', 0, 80, commit='D'),
        record('ravlt-nano', 'shapes', 'RALA', 1),
        dict(record('ravlt-nano', 'shapes', 'HydraAttention', 0), error='no luck'),
        record('ravlt-nano', 'shapes', 'WindowAttention', 0),
    ]
    return page.Zoo(
        attentions=['RALA', 'HydraAttention', 'WindowAttention'],
        hosts=list(plan.HOSTS),
        data=list(plan.DATA),
        records=records,
        refused={('deit-nano', 'WindowAttention'): 'WindowAttention takes no token; got 1'},
        costs=dict(machine='M', commit='E', hosts={'deit-nano': {'RALA': cost}}),
        missing={'bccd-cells': 'skipped'},
        command='python',
    )


def test_the_table_by_hand(example):
    head = '| attention | Shapes, % | BCCD cells, % | parameters, M | ms an image | MiB a step |'
    line = '| --- | ---: | ---: | ---: | ---: | ---: |'
    unknown = 'not measured | not measured | not measured |'
    assert page.table(example) == [
        '## DeiT-nano', '', head, line,
        # The squares of -3, -1 and 4 are 26, over n - 1 = 2.
        f'| `RALA` | 73.0 ± {13**0.5:.1f} (3) | no data | 1.23 | 2.00 ± 0.30 | 3 |',
        f'| `HydraAttention` | 65.0 (1) | no data | {unknown}',
        '| `WindowAttention` | refused | refused |  |  |  |',
        '',
        '## RAVLT-nano', '', head, line,
        f'| `RALA` | 80.0 (1 of 2) | no data | {unknown}',
        f'| `HydraAttention` | failed | no data | {unknown}',
        f'| `WindowAttention` | not run | no data | {unknown}',
        '',
        '- BCCD cells: skipped.',
        '- DeiT-nano refuses `WindowAttention`: it takes no token.',
        '- RAVLT-nano, Shapes, `HydraAttention`, seed 0: no luck',
        '- Not the defaults, which are for larger maps: `WindowAttention` window_size=4.',
        '',
        '- Shapes: 20 images, 2 epochs, scored on 100: the standard error of one score is at most '
        '5.0.',
        '- 5 trainings, 8 minutes of one core.',
        '- Machine of trainings: M.',
        '- Machine of times: M.',
        '- Versions of trainings: V.',
        '- Commit of trainings: C; D.',
        '- Commit of times: E.',
        '- Command: `python`.',
    ]  # fmt: skip


def test_the_chart_shows_every_score(example):
    panels = page.chart(example).axes
    assert [axes.get_title() for axes in panels] == ['DeiT-nano, Shapes', 'RAVLT-nano, Shapes']
    points = [sorted(x for line in axes.lines for x in line.get_xdata()) for axes in panels]
    for value in (70, 72, 73, 77, 65.04):
        assert np.isclose(points[0], value).any()
    assert np.isclose(points[1], 80).any()
    assert [text.get_text() for text in panels[0].texts] == ['refused']
    assert [text.get_text() for text in panels[1].texts] == ['not run', 'not run']


def test_costs_are_of_the_models_that_were_asked_for(tmp_path):
    models = {'deit-nano': ['HydraAttention', 'NystromAttention']}
    assert not costs.complete(costs.read(tmp_path), models, 2)
    costs.measure(tmp_path, models, 2)
    found = costs.read(tmp_path)
    assert costs.complete(found, models, 2) and not costs.complete(found, models, 3)
    assert not costs.complete(found, dict(models, **{'ravlt-nano': ['RALA']}), 2)
    hydra, nystrom = (found['hosts']['deit-nano'][name] for name in models['deit-nano'])
    # Patches, token, positions; 6 layers of norms, projections and MLP; norm, classes.
    layer = 4 * 96 + (96 * 288 + 288) + (96 * 96 + 96) + (2 * 4 * 96 * 96 + 5 * 96)
    params = 3 * 64 * 96 + 96 + 96 + 65 * 96 + 6 * layer + 2 * 96 + 96 * 5 + 5
    assert hydra['params'] == params
    assert nystrom['params'] == params + 6 * (25 * 96 + 96)
    assert min(hydra['ms']) > 0 and nystrom['bytes'] > hydra['bytes'] > 4 * params


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--seeds', '0'], '--seeds must be positive, got 0'),
        (['--bccd', 'nowhere'], '--bccd nowhere: no annotations/train.json there'),
        (['--attentions', 'Bahdanau'], "invalid choice: 'Bahdanau'"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        zoo.parse_args(arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err


def test_the_page_has_a_place_for_the_table(root: Path):
    text = (root / 'docs' / 'zoo.md').read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1

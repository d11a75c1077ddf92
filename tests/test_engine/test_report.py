"""Curves that a training leaves behind."""

import json
import time

import pytest
from mmengine.config import Config

from mmlinattn.engine.curves import draw_curves, draw_ring_weights, read_scalars
from mmlinattn.engine.hooks import report_hook
from mmlinattn.engine.training_setup import set_up_training
from tests.test_engine.tiny_runner import IMAGES, Constant, tiny_runner


def write_scalars(folder, name, lines):
    """Write what a part of a training has logged; lines are dicts or texts."""
    path = folder / name / 'vis_data' / 'scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(x if isinstance(x, str) else json.dumps(x) for x in lines))


def runner_of(folder, epochs, **options):
    hooks = dict(logger=dict(type='LoggerHook', interval=1), report=dict(type='ReportHook'))
    return tiny_runner(
        folder, epochs, dataset=4 * IMAGES, batch_size=2, default_hooks=hooks, **options
    )


def test_a_resumed_training_is_drawn_as_one(tmp_path, monkeypatch):
    seen = []

    def keep(training, *rest):
        seen.append(training['loss'])
        return draw_curves(training, *rest)

    monkeypatch.setattr(report_hook, 'draw_curves', keep)
    runner_of(tmp_path, 3).train()
    assert [path.name for path in (tmp_path / 'report').iterdir()] == ['curves.png']
    assert 'report: curves.png' in next(tmp_path.glob('*/*.log')).read_text()
    time.sleep(1.1)  # each part has a folder, named by its second
    resumed = runner_of(tmp_path, 4, resume=True, load_from=str(tmp_path / 'epoch_2.pth'))
    resumed.train()
    first, both = seen
    assert [x for x, _ in first] == [i / 4 for i in range(1, 13)]
    assert [x for x, _ in both] == [i / 4 for i in range(1, 17)]
    assert dict(both[:12]) == pytest.approx(dict(first), abs=1e-4)


def test_curves_join_the_parts_of_a_training(tmp_path):
    parts = {'a': (range(1, 7), (1, 2, 3)), 'b': (range(5, 9), (3, 4))}
    for name, (iterations, epochs) in parts.items():
        lines = [dict(loss=1.0 if name == 'a' else 2.0, lr=0.1, iter=i, step=i) for i in iterations]
        scores = {epoch: dict(mIoU=50.0, x=-1, step=epoch) for epoch in epochs}
        at = {epoch: max(i for i, line in enumerate(lines) if line['iter'] <= 2 * epoch) + 1
              for epoch in epochs}  # fmt: skip
        for n, epoch in enumerate(epochs):
            lines.insert(at[epoch] + n, scores[epoch])
        write_scalars(tmp_path, name, lines)
    # The second part began after iteration 4, with epochs of two iterations.
    training, validation = read_scalars(tmp_path, [('a', 0, 2), ('b', 4, 2)])
    assert training['loss'] == [(i / 2, 1.0 if i <= 4 else 2.0) for i in range(1, 9)]
    assert validation['mIoU'] == [(epoch, 50.0) for epoch in range(1, 5)] and 'x' not in validation
    of_classes = {name: [(1, 9.0)] for name in ('boundary/IoU_sky', 'coco/sky_precision')}
    figure = draw_curves(training, {**of_classes, **validation}, 'epoch')  # they would fill it
    loss, scores, rate = figure.axes
    assert loss.lines[0].get_xydata().tolist() == [list(p) for p in training['loss']]
    assert scores.lines[0].get_xydata().tolist() == [list(p) for p in validation['mIoU']]
    assert (rate.get_title(), scores.get_title()) == ('learning rate', 'mIoU')


def test_validations_between_logged_iterations(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(report_hook, 'draw_curves', lambda _, scores, unit: seen.append(scores))
    hooks = dict(logger=dict(type='LoggerHook', interval=5), report=dict(type='ReportHook'))
    loader = dict(dataset=IMAGES, batch_size=1, sampler=dict(type='DefaultSampler', shuffle=False))
    loader.update(collate_fn=dict(type='default_collate'))
    options = dict(by_epoch=False, default_hooks=hooks, metrics=dict(type=Constant))
    options.update(train_cfg=dict(by_epoch=False, max_iters=8, val_interval=2))
    tiny_runner(tmp_path, val_dataloader=loader, **options).train()
    assert [x for x, _ in seen[0]['score']] == [2, 4, 6, 8]


def test_parts_whose_epochs_differ_in_length(tmp_path):
    """As after a resume with another batch size, which counts iterations anew."""
    for name, iterations in (('a', range(1, 10)), ('b', range(13, 19))):
        lines = [dict(loss=1.0, iter=i, step=i) for i in iterations]
        write_scalars(tmp_path, name, [*lines, dict(mIoU=5.0, step=3)])
    training, validation = read_scalars(tmp_path, [('a', 0, 3), ('b', 12, 6)])
    epochs = [i / 3 for i in range(1, 7)] + [i / 6 for i in range(13, 19)]
    assert [x for x, _ in training['loss']] == epochs
    assert validation['mIoU'] == [(3, 5.0)]


def test_the_last_iteration_of_a_part_is_drawn(tmp_path):
    lines = [dict(loss=i, iter=i, step=i) for i in (28, 29, 30)]
    write_scalars(tmp_path, 'a', ['{"loss": 2', '', *lines])  # a line that was cut off
    assert 29 / 7 * 7 > 29
    training, _ = read_scalars(tmp_path, [('a', 0, 7), ('b', 29, 7)])
    assert training['loss'] == [(28 / 7, 28), (29 / 7, 29)]


def test_losses_of_inner_layers_are_left_out():
    names = [f'{part}loss_{kind}' for part in ('', 'd0.', 'd1.', 'd2.') for kind in 'abc']
    for prefix in ('', 'decode.'):
        training = {prefix + name: [(1.0, 2.0), (2.0, 1.0)] for name in names}
        scores = {f'score_{i}': [(1.0, 0.5)] for i in range(12)}
        rates = {f'{model}.lr': [(1.0, 0.1)] for model in ('generator', 'discriminator')}
        axes = draw_curves({'loss': [(1.0, 2.0)], **training, **rates}, scores, 'epoch').axes
        assert [line.get_label() for line in axes[2].lines] == [*rates]
        drawn = [line.get_label() for line in axes[0].lines]
        assert drawn == ['loss', *(f'{prefix}loss_{kind}' for kind in 'abc')]
        assert not any(text.get_parse_math() for text in axes[0].get_legend().get_texts())
        assert axes[1].get_title() == 'scores of the validation, the first 9 of 12'


def test_ring_weights_are_drawn_by_layer():
    names = [f'ripple/{m}/{layer}' for m in ('js_fixed', 'js_uniform', 'entropy') for layer in 'ab']
    training = {name: [(1, i), (2, i + 0.5)] for i, name in enumerate(names)}
    figure = draw_ring_weights(dict(training, loss=[(1, 9.0)]), 'epoch')
    drawn = [[line.get_xydata().tolist() for line in axis.lines] for axis in figure.axes]
    wanted = [[list(map(list, training[name])) for name in names[i : i + 2]] for i in (0, 2, 4)]
    assert drawn == wanted
    assert [line.get_label() for line in figure.axes[1].lines] == ['a', 'b']
    assert draw_ring_weights(dict(loss=[(1, 9.0)]), 'epoch') is None


def test_a_picture_that_fails_ends_no_training(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError('no canvas')

    monkeypatch.setattr(report_hook, 'draw_curves', fail)
    runner_of(tmp_path, 1).train()
    text = next(tmp_path.glob('*/*.log')).read_text()
    assert 'no report of the training (RuntimeError: no canvas)' in text
    assert (tmp_path / 'epoch_1.pth').exists()


def test_only_the_first_process_draws(tmp_path, monkeypatch):
    monkeypatch.setattr('mmengine.dist.utils.is_main_process', lambda *_: False)
    runner_of(tmp_path, 1).train()
    assert not (tmp_path / 'report').exists()


def test_the_hook_of_a_config():
    parts = dict(optim_wrapper=dict(type='OptimWrapper'))
    cfg = Config(dict(parts, default_hooks=dict(logger=dict(type='LoggerHook'))))
    set_up_training(cfg, resume=None, amp=False)
    assert cfg.default_hooks.report.type == 'ReportHook'
    off = Config(dict(parts, default_hooks=dict(report=None)))
    set_up_training(off, resume=None, amp=False)
    assert off.default_hooks.report is None


def test_a_report_that_is_none_is_no_hook(tmp_path):
    """MMEngine takes None for its own default hooks alone."""
    runner = runner_of(tmp_path, 1)
    before = [type(hook).__name__ for hook in runner.hooks].count('ReportHook')
    runner.register_default_hooks(dict(report=None))
    assert [type(hook).__name__ for hook in runner.hooks].count('ReportHook') == before

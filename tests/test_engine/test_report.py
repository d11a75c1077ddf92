"""Curves, scores per class and pictures that a training leaves behind."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.model import BaseModel
from torch import nn

from mmlinattn.engine.hooks import report_hook
from mmlinattn.engine.report import evaluation as evaluations
from mmlinattn.engine.report.curves import draw_curves, draw_ring_weights, read_scalars
from mmlinattn.engine.report.evaluation import Evaluation, report_metric
from mmlinattn.engine.report.pictures import draw_confusion, draw_precision_recall, per_class_csv
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.engine.training_setup import set_report
from tests.sizes import some


def run_metrics(metric, samples, classes):
    """Evaluate in two batches, and return the logged scores and the evaluation of the report."""
    evaluator = Evaluator([metric])
    evaluator.metrics.append(report_metric(evaluator))
    evaluator.dataset_meta = dict(classes=classes)
    half = len(samples) // 2
    for part in (samples[:half], samples[half:]):
        evaluator.process(part, {})
    logged = evaluator.evaluate(len(samples))
    return logged, evaluator.metrics[-1].evaluation


def maps(number=4, classes=3, seed=0):
    """Samples of a segmentor: maps of 5x7 pixels with ignored ones, right by two thirds."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(number):
        true = rng.integers(0, classes, (1, 5, 7))
        pred = np.where(rng.random(true.shape) < 0.6, true, rng.integers(0, classes, true.shape))
        true[rng.random(true.shape) < 0.1] = 255
        samples.append(
            {
                name: dict(data=torch.tensor(value))
                for name, value in dict(pred_sem_seg=pred, gt_sem_seg=true).items()
            }
        )
    return samples


def test_scores_of_a_segmentor():
    metrics = pytest.importorskip('mmseg.evaluation', reason='IoUMetric is its own')
    samples = maps()
    logged, found = run_metrics(metrics.IoUMetric(), samples, ('a', 'b', 'c', 'never there'))
    pairs = [
        (int(t), int(p))
        for sample in samples
        for t, p in zip(*(sample[n]['data'].flatten() for n in ('gt_sem_seg', 'pred_sem_seg')))
        if t != 255
    ]
    for i, name in enumerate('abc'):
        both = sum(pair == (i, i) for pair in pairs)
        either = sum(i in pair for pair in pairs)
        true = sum(t == i for t, _ in pairs)
        assert found.columns['IoU'][i] == pytest.approx(both / either, abs=1e-4), name
        assert found.columns['accuracy'][i] == pytest.approx(both / true, abs=1e-4)
        assert found.columns['pixels'][i] == true
        assert found.confusion[i][:3] == [pairs.count((i, j)) for j in range(3)]
    assert found.columns['IoU'][3] is None
    assert logged['mIoU'] == pytest.approx(100 * np.mean(found.columns['IoU'][:3]), abs=0.01)


def test_scores_of_a_classifier():
    metrics = pytest.importorskip('mmpretrain.evaluation', reason='its metrics are scored beside')
    true, predicted = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 0, 1]
    samples = [
        dict(
            gt_label=torch.tensor([t]),
            pred_label=torch.tensor([p]),
            pred_score=nn.functional.one_hot(torch.tensor(p), 4).float(),
        )
        for t, p in zip(true, predicted)
    ]
    logged, found = run_metrics(metrics.Accuracy(), samples, list('abcd'))
    assert found.confusion == [[2, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0] * 4]
    assert found.columns == dict(
        accuracy=[0.6667, 0.5, 0.0, None],
        precision=[0.6667, 0.3333, 0.0, None],
        F1=[0.6667, 0.4, 0.0, None],
        images=[3, 2, 1, 0],
    )
    assert logged['accuracy/top1'] == pytest.approx(50)


# Of own data: categories with gaps, one of them no class of the config.
BOXES = [  # (image, category, box, crowd)
    (0, 7, [0, 0, 10, 10], 0), (0, 3, [20, 0, 10, 10], 0), (0, 3, [50, 50, 40, 40], 1),
    (1, 3, [0, 0, 10, 10], 0), (1, 9, [30, 30, 10, 10], 0),
]  # fmt: skip
FOUND = [  # (image, label, corners, score); labels 0, 1 are the categories 3, 7
    (0, 1, [0, 0, 10, 10], 0.9), (0, 1, [20, 0, 30, 10], 0.8), (0, 0, [70, 0, 80, 10], 0.7),
    (0, 0, [55, 55, 75, 75], 0.6), (1, 0, [0, 0, 10, 10], 0.2), (1, 0, [30, 30, 40, 40], 0.9),
]  # fmt: skip


def coco(folder, first_id=1, **options):
    metrics = pytest.importorskip('mmdet.evaluation', reason='CocoMetric is its own')
    annotations = [
        dict(id=first_id + i, image_id=image, category_id=category, bbox=box, area=box[2] * box[3],
             iscrowd=crowd, segmentation=dict(size=[99, 99], counts='') if crowd else [])
        for i, (image, category, box, crowd) in enumerate(BOXES)
    ]  # fmt: skip
    names = {3: 'nut', 7: 'bolt', 9: 'not a class of the config', 11: 'never drawn'}
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=99, height=99) for i in range(2)],
        categories=[dict(id=i, name=name) for i, name in names.items()],
        annotations=annotations,
    )
    (folder / 'val.json').write_text(json.dumps(content))
    return metrics.CocoMetric(str(folder / 'val.json'), metric='bbox', **options)


def detections(found):
    samples = []
    for image in range(2):
        of_image = [rest for i, *rest in found if i == image]
        labels, boxes, scores = zip(*of_image) if of_image else ((), (), ())
        pred = dict(
            bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            labels=torch.tensor(labels, dtype=torch.long),
            scores=torch.tensor(scores),
        )
        samples.append(dict(img_id=image, ori_shape=(99, 99), pred_instances=pred))
    return samples


def test_scores_of_a_detector(tmp_path):
    logged, found = run_metrics(coco(tmp_path, classwise=True), detections(FOUND), ('nut', 'bolt'))
    assert found.confusion == [
        [0, 1, 1],  # a nut is called a bolt, and the score of another one is below 0.3
        [0, 1, 0],
        [2, 0, 0],  # at (70, 0), and on an object of no class; that on the crowd counts for none
    ]
    assert found.columns['objects'] == [2, 1]
    for i, name in enumerate(('nut', 'bolt')):
        assert found.columns['AP'][i] == pytest.approx(logged[f'coco/{name}_precision'], abs=6e-4)
        assert np.mean(found.precision[i]) == pytest.approx(found.columns['AP50'][i], abs=1e-3)
    assert logged['coco/bbox_mAP_50'] == pytest.approx(np.mean(found.columns['AP50']), abs=6e-4)
    # All bolts are found first; the nut comes behind two false ones, of three.
    assert found.precision[1] == [1.0] * 101
    assert found.precision[0][0] == pytest.approx(1 / 3, abs=1e-3) and found.precision[0][60] == 0


def test_confusion_with_objects_that_count_from_0(tmp_path):
    # pycocotools takes the first one for never found.
    found = run_metrics(coco(tmp_path, 0), detections(FOUND), ('nut', 'bolt'))[1]
    assert found.confusion == [[0, 1, 1], [0, 1, 0], [2, 0, 0]]


@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_a_class_without_objects_has_no_score(tmp_path):
    found = run_metrics(coco(tmp_path), detections(FOUND), ('nut', 'bolt', 'never drawn'))[1]
    assert found.columns['AP'][2] is None and None not in found.columns['AP'][:2]


def test_a_detector_that_finds_nothing(tmp_path):
    found = run_metrics(coco(tmp_path), detections([]), ('nut', 'bolt'))[1]
    assert found is None or found.columns['AP'] == [0, 0]
    unsure = [(*rest, 0.1) for *rest, _ in FOUND]
    found = run_metrics(coco(tmp_path), detections(unsure), ('nut', 'bolt'))[1]
    assert found.confusion == [[0, 0, 2], [0, 0, 1], [0, 0, 0]]


class Net(BaseModel):
    """A segmentor of one number; its maps are those of :func:`maps` with a seed by iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.validations = 0

    def forward(self, inputs, mode='tensor'):
        if mode == 'loss':
            return dict(loss=self.weight.square() + inputs.mean())
        self.validations += 1
        return maps(len(inputs), seed=round(1e4 * float(self.weight)))


class Data(list):
    metainfo = dict(classes=('a', 'b', 'c'))


def runner_of(folder, epochs, **options):
    torch.manual_seed(0)
    data = Data([dict(inputs=torch.ones(1)) for _ in range(8)])
    loader = dict(
        dataset=data,
        collate_fn=dict(type='default_collate'),
        sampler=dict(type='DefaultSampler', shuffle=False),
        batch_size=2,
    )
    metrics = pytest.importorskip('mmseg.evaluation', reason='IoUMetric is its own')
    hooks = dict(
        logger=dict(type='LoggerHook', interval=1),
        checkpoint=dict(type='AtomicCheckpointHook', interval=1, **options.pop('checkpoint', {})),
        report=dict(type='ReportHook'),
    )
    return PluginRunner(
        model=Net(), work_dir=str(folder), train_dataloader=loader, val_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=epochs), val_cfg=dict(),
        val_evaluator=[metrics.IoUMetric()], default_hooks=hooks,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05)),
        visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]),
        experiment_name=f'{folder}-{epochs}'.replace('/', '_'), **options,
    )  # fmt: skip


def miou(folder, epoch):
    """The score that the log has for an epoch."""
    for path in folder.glob('*/vis_data/scalars.json'):
        for line in map(json.loads, path.open()):
            if 'mIoU' in line and line['step'] == epoch:
                return line['mIoU']
    raise AssertionError(epoch)


def table(folder):
    with (folder / 'report' / 'per_class.csv').open() as file:
        return {row['class']: row for row in csv.DictReader(file)}


def test_a_training_leaves_a_report_of_its_last_validation(tmp_path):
    runner = runner_of(tmp_path, 3)
    runner.train()
    assert runner.model.validations == 3 * 4  # no pass more
    names = {path.name for path in (tmp_path / 'report').iterdir()}
    assert names == {'curves.png', 'confusion_matrix.png', 'per_class.csv', 'validation.json'}
    mean = 100 * float(table(tmp_path)['all classes']['IoU'])
    assert mean == pytest.approx(miou(tmp_path, 3), abs=0.01) != pytest.approx(miou(tmp_path, 2))
    assert 'report: confusion_matrix.png, curves.png' in next(tmp_path.glob('*/*.log')).read_text()


def test_a_resumed_training_reports_the_best_and_all_of_its_curves(tmp_path):
    checkpoint = dict(save_best='mIoU')
    runner_of(tmp_path / 'whole', 4, checkpoint=checkpoint).train()
    scores = [miou(tmp_path / 'whole', epoch) for epoch in range(1, 5)]
    best = int(np.argmax(scores)) + 1
    runner = runner_of(tmp_path / 'part', 3, checkpoint=checkpoint)
    runner.train()
    resumed = runner_of(
        tmp_path / 'part', 4, checkpoint=checkpoint, resume=True,
        load_from=str(tmp_path / 'part' / 'epoch_2.pth'),
    )  # fmt: skip
    resumed._timestamp += '-2'  # in the same second
    resumed.train()
    for folder in ('whole', 'part'):
        mean = 100 * float(table(tmp_path / folder)['all classes']['IoU'])
        assert mean == pytest.approx(max(scores), abs=0.01), folder
        text = (tmp_path / folder / 'report' / 'validation.json').read_text()
        assert json.loads(text)['about'] == f'epoch {best} (best)'


def test_curves_join_the_parts_of_a_training(tmp_path):
    parts = {'a': (range(1, 7), (1, 2, 3)), 'b': (range(5, 9), (3, 4))}
    for name, (iterations, epochs) in parts.items():
        lines = [dict(loss=1.0 if name == 'a' else 2.0, lr=0.1, iter=i, step=i) for i in iterations]
        scores = {epoch: dict(mIoU=50.0, x=-1, step=epoch) for epoch in epochs}
        at = {epoch: max(i for i, line in enumerate(lines) if line['iter'] <= 2 * epoch) + 1
              for epoch in epochs}  # fmt: skip
        for n, epoch in enumerate(epochs):
            lines.insert(at[epoch] + n, scores[epoch])
        path = tmp_path / name / 'vis_data' / 'scalars.json'
        path.parent.mkdir(parents=True)
        path.write_text('\n'.join(map(json.dumps, lines)))
    # The second part began after iteration 4, with epochs of two iterations.
    training, validation = read_scalars(tmp_path, [('a', 0), ('b', 4)], 2)
    assert training['loss'] == [(i / 2, 1.0 if i <= 4 else 2.0) for i in range(1, 9)]
    assert validation['mIoU'] == [(epoch, 50.0) for epoch in range(1, 5)] and 'x' not in validation
    of_classes = {name: [(1, 9.0)] for name in ('boundary/IoU_sky', 'coco/sky_precision')}
    figure = draw_curves(training, {**of_classes, **validation}, 'epoch')  # they would fill it
    loss, scores, rate = figure.axes
    assert loss.lines[0].get_xydata().tolist() == [list(p) for p in training['loss']]
    assert scores.lines[0].get_xydata().tolist() == [list(p) for p in validation['mIoU']]
    assert (rate.get_title(), scores.get_title()) == ('learning rate', 'mIoU')


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

    monkeypatch.setattr('mmlinattn.engine.report.curves.draw_curves', fail)
    monkeypatch.setattr(evaluations.SegmentationReport, 'collect', fail)
    runner_of(tmp_path, 1).train()
    text = next(tmp_path.glob('*/*.log')).read_text()
    assert 'no report of the training (RuntimeError: no canvas)' in text
    assert 'no scores per class in the report (RuntimeError: no canvas)' in text
    assert (tmp_path / 'epoch_1.pth').exists() and miou(tmp_path, 1) > 0


def test_only_the_first_process_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(report_hook, 'is_main_process', lambda: False)
    runner_of(tmp_path, 1).train()
    assert not (tmp_path / 'report' / 'curves.png').exists()


def test_the_hook_of_a_config():
    cfg = Config(dict(default_hooks=dict(logger=dict(type='LoggerHook'))))
    set_report(cfg)
    assert cfg.default_hooks.report.type == 'ReportHook'
    off = Config(dict(default_hooks=dict(report=None)))
    set_report(off)
    assert off.default_hooks.report is None


def test_a_report_that_is_none_is_no_hook(tmp_path):
    """MMEngine takes None for its own default hooks alone."""
    runner = runner_of(tmp_path, 1)
    before = [type(hook).__name__ for hook in runner.hooks].count('ReportHook')
    runner.register_default_hooks(dict(report=None))
    assert [type(hook).__name__ for hook in runner.hooks].count('ReportHook') == before


def made_up(number, is_detector):
    names = [f'class {i} of these' for i in range(number)]
    rows = number + is_detector
    curve = list(np.linspace(1, 0, 101))
    precision = [curve for _ in names] if is_detector else []
    columns = dict(AP=[0.5, None, *[0.25] * (number - 2)], objects=[2] * number)
    if is_detector:
        precision[1] = [None] * 101
    return Evaluation(names, columns, np.eye(rows, dtype=int).tolist(), precision, 'epoch 1')


@pytest.mark.long
@pytest.mark.parametrize('number, is_detector', some([(80, True), (3, True), (150, False)]))
def test_names_are_drawn_without_overlap(number, is_detector):
    found = made_up(number, is_detector)
    figure = draw_confusion(found)
    figure.draw_without_rendering()
    axis = figure.axes[0]
    labels = axis.get_yticklabels()
    wanted = [*found.classes, *(['background'] if is_detector else [])]
    assert [label.get_text() for label in labels] == wanted
    assert [label.get_text() for label in axis.get_xticklabels()] == wanted
    boxes = [label.get_window_extent() for label in labels]
    assert all(below.y1 <= above.y0 for above, below in pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0
    if is_detector:
        axis, legend = (figure := draw_precision_recall(found)).axes[0], figure.legends[0]
        texts = [text.get_text() for text in legend.get_texts()]
        assert texts[-1] == f'mean of {number - 1} classes 0.500' and len(texts) <= 11
        assert len(axis.lines) == number  # without the class that has no objects, and their mean


def test_table():
    rows = [*csv.reader(per_class_csv(made_up(3, True)).splitlines())]
    assert rows == [
        ['class', 'AP', 'objects'], ['class 0 of these', '0.5', '2'], ['class 1 of these', '', '2'],
        ['class 2 of these', '0.25', '2'], ['all classes', '0.375', '6'],
    ]  # fmt: skip
    assert Evaluation.loads(made_up(3, True).dumps()) == made_up(3, True)

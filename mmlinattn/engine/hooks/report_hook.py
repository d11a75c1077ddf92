"""Hook that draws curves and scores per class when a training ends."""

import warnings
from pathlib import Path
from typing import Any, Optional

from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from ...utils import write_text
from ...utils.messages import log_warning
from ..report.evaluation import Evaluation, ReportMetric, report_metric

FOLDER = 'report'
EVALUATION = 'validation.json'
# Key of the parts of a training in the message hub, which every checkpoint contains.
RUNS = 'report_runs'


@HOOKS.register_module()
class ReportHook(Hook):
    """Hook that writes curves, scores per class and pictures to ``report/`` of the work directory.

    The folder gets ``curves.png`` (losses, scores, learning rate), ``per_class.csv``,
    ``confusion_matrix.png`` and, for detectors, ``precision_recall.png``, when the training ends;
    with :class:`RippleWeightsHook` also ``ring_weights.png``. Scores are those of the validation of
    the best checkpoint if ``save_best`` is set, else of the last one. Its predictions are used as
    they come; the model does not run again. Resumed trainings are drawn as one. ``tools/train.py``
    uses the hook; ``default_hooks.report=None`` switches it off.

    Scores per class need CocoMetric, IoUMetric, or Accuracy or SingleLabelMetric with one label per
    image. An error while drawing is a warning.

    Example:
        >>> default_hooks = dict(report=dict(type='ReportHook'))
    """

    # After the checkpoint hook, which finds the best score.
    priority = 'LOWEST'

    def __init__(self) -> None:
        self.metric: Optional[ReportMetric] = None
        self.best: dict = {}

    def before_train(self, runner: Runner) -> None:
        hub = runner.message_hub
        runs = [*hub.get_info(RUNS, []), [runner.timestamp, runner.iter]]
        hub.update_info(RUNS, runs)
        self.best = _best_scores(runner)
        evaluator: Any = getattr(runner.val_loop, 'evaluator', None)
        if type(evaluator) is Evaluator:
            self.metric = report_metric(evaluator)
        if self.metric is not None:
            self.metric.dataset_meta = evaluator.dataset_meta
            evaluator.metrics.append(self.metric)
        if is_main_process() and len(runs) == 1:
            (_folder(runner) / EVALUATION).unlink(missing_ok=True)

    def before_val_epoch(self, runner: Runner) -> None:
        if self.metric is not None:
            self.metric.evaluation = None

    def after_val_epoch(self, runner: Runner, metrics: Optional[dict] = None) -> None:
        before, self.best = self.best, _best_scores(runner)
        found = self.metric and self.metric.evaluation
        if not found or (self.best and self.best == before):
            return
        by_epoch = isinstance(runner._train_loop, EpochBasedTrainLoop)
        when = f'epoch {runner.epoch}' if by_epoch else f'iteration {runner.iter}'
        found.about = f'{when} ({"best" if self.best else "last validation"})'
        try:
            _folder(runner).mkdir(exist_ok=True)
            write_text(_folder(runner) / EVALUATION, found.dumps())
        except OSError as error:
            _warn(error)

    def after_train(self, runner: Runner) -> None:
        if not is_main_process():
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of fonts without the letters of a name
                written = _write(runner)
        except Exception as error:  # the training is done
            _warn(error)
            return
        if written:
            print_log(f'{_folder(runner)}: {", ".join(written)}', 'current')


def _write(runner: Runner) -> list:
    """Write the files of the report, and return their names."""
    from ..report.curves import draw_curves, draw_ring_weights, read_scalars
    from ..report.pictures import draw_confusion, draw_precision_recall, per_class_csv

    folder, loop, pictures = _folder(runner), runner._train_loop, {}
    folder.mkdir(exist_ok=True)
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    length = len(loop.dataloader) if by_epoch else None
    runs = runner.message_hub.get_info(RUNS)
    scalars = read_scalars(Path(runner.work_dir), runs, length)
    unit = 'epoch' if by_epoch else 'iteration'
    pictures['curves.png'] = draw_curves(*scalars, unit)
    pictures['ring_weights.png'] = draw_ring_weights(scalars[0], unit)
    written = []
    if (folder / EVALUATION).exists():
        evaluation = Evaluation.loads((folder / EVALUATION).read_text(encoding='utf-8'))
        (folder / 'per_class.csv').write_text(per_class_csv(evaluation), encoding='utf-8')
        written.append('per_class.csv')
        pictures['confusion_matrix.png'] = draw_confusion(evaluation)
        if evaluation.precision:
            pictures['precision_recall.png'] = draw_precision_recall(evaluation)
    for name, figure in pictures.items():
        if figure is not None:
            figure.savefig(folder / name)
            written.append(name)
    return sorted(written)


def _folder(runner: Runner) -> Path:
    return Path(runner.work_dir) / FOLDER


def _best_scores(runner: Runner) -> dict:
    info = runner.message_hub.runtime_info
    return {name: value for name, value in info.items() if name.startswith('best_score')}


def _warn(error: Exception) -> None:
    log_warning(f'no report of the training ({type(error).__name__}: {error})')

"""Hook that draws the curves of a training when it ends."""

from pathlib import Path

from mmengine.dist import master_only
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from ...utils.messages import log_warning
from ..curves import draw_curves, draw_ring_weights, read_scalars

# Key of the parts of a training in the message hub, which every checkpoint contains.
RUNS = 'report_runs'


@HOOKS.register_module()
class ReportHook(Hook):
    """Hook that draws losses, scores and learning rate when the training ends.

    It writes ``report/curves.png`` in the work directory, and with :class:`RippleWeightsHook`
    also ``ring_weights.png``. Resumed trainings are drawn as one. The command ``train`` uses the
    hook; ``default_hooks.report=None`` switches it off. An error while drawing is a warning.

    Example:
        >>> default_hooks = dict(report=dict(type='ReportHook'))
    """

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        hub = runner.message_hub
        by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        length = len(runner.train_dataloader) if by_epoch else None
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook) and not by_epoch:
                hook.log_metric_by_epoch = False  # the epoch is 0 at each validation
        run = [runner.timestamp, runner.iter, length]
        hub.update_info(RUNS, [*hub.get_info(RUNS, []), run])

    @master_only
    def after_train(self, runner: Runner) -> None:
        try:
            folder = Path(runner.work_dir) / 'report'
            folder.mkdir(exist_ok=True)
            runs = runner.message_hub.get_info(RUNS)
            unit = 'iteration' if runs[-1][2] is None else 'epoch'
            training, validation = read_scalars(Path(runner.work_dir), runs)
            curves = draw_curves(training, validation, unit)
            pictures = {'curves.png': curves, 'ring_weights.png': draw_ring_weights(training, unit)}
            written = {name: figure for name, figure in pictures.items() if figure is not None}
            for name, figure in written.items():
                figure.savefig(folder / name)
        except Exception as error:  # the training is done
            log_warning(f'no report of the training ({type(error).__name__}: {error})')
            return
        if written:
            print_log(f'{runner.work_dir}/report: {", ".join(written)}', 'current')

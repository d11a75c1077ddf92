"""Checkpoints of a training that a kill at any moment leaves whole, and the newest of them."""

from collections import deque
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Optional, Union

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..checkpoints import CheckpointError, read_checkpoint, whole_file

# The name under which a training that was told to stop leaves its state.
INTERRUPTED = 'interrupted.pth'
LAST = 'last_checkpoint'
ATOMIC = dict(backend='atomic')


@register_backend('atomic')
class AtomicBackend(LocalBackend):
    """Checkpoints on this machine: each is read back, and then appears whole."""

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        path = Path(filepath)
        with whole_file(path) as temporary:
            temporary.write_bytes(obj)
            read_checkpoint(temporary)


class _RemovesLater:
    """A file backend whose ``remove`` waits for :meth:`carry_out`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.waiting: List[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['backend'], name)

    def remove(self, path: str) -> None:
        self.waiting.append(path)

    def carry_out(self, but: Iterable[Optional[str]]) -> None:
        for path in set(self.waiting).difference(but):
            self.backend.remove(path)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, of which a kill, a full disk or a power cut takes nothing.

    A checkpoint and ``last_checkpoint`` appear whole or not at all. A checkpoint is read back
    before it takes its name, and older ones go only after that. ``tools/train.py`` uses it in
    place of ``CheckpointHook``.

    Args:
        others: see MMEngine's CheckpointHook; ``out_dir`` may also be an address of another file
            backend, of which this hook promises the order only.

    Raises:
        CheckpointError: while training, for a checkpoint that cannot be written, or would not be
            read again (a hook has put objects into it); older ones are as they were.

    Example:
        >>> default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=2))
    """

    # Number of iterations in the newest checkpoint, None before the first.
    saved_iter: Optional[int] = None

    def before_train(self, runner: Runner) -> None:
        if self.backend_args is None and '://' not in str(self.out_dir or runner.work_dir):
            self.backend_args = dict(ATOMIC)
        super().before_train(runner)
        if is_main_process() and self.backend_args == ATOMIC:
            Path(self.out_dir).mkdir(parents=True, exist_ok=True)
            _remove_remains(Path(self.out_dir))

    def save_interrupted(self, runner: Runner) -> None:
        """Saves the state after an iteration, inside an epoch or not, as ``interrupted.pth``,
        which goes when the next regular checkpoint is there."""
        self.last_ckpt = self.file_backend.join_path(self.out_dir, INTERRUPTED)
        meta = dict(epoch=runner.epoch, iter=runner.iter + 1)
        self._save(runner, INTERRUPTED, meta, by_epoch=False)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        outdated = []
        if self.max_keep_ckpts > 0:
            kept = [kept for kept in self.keep_ckpt_ids if kept != step]
            outdated = kept[: max(len(kept) + 1 - self.max_keep_ckpts, 0)]
            # Should a kill come before these are removed, the resumed training removes them.
            runner.message_hub.update_info('keep_ckpt_ids', [*kept, step])
            self.keep_ckpt_ids = deque([*kept, step], self.max_keep_ckpts)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._save(runner, name, meta, self.by_epoch)
        if self.max_keep_ckpts > 0:
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        if is_main_process():
            for name in (*map(self.filename_tmpl.format, outdated), INTERRUPTED):
                path = self.file_backend.join_path(self.out_dir, name)
                if self.file_backend.isfile(path):
                    self.file_backend.remove(path)

    def _save(self, runner: Runner, name: str, meta: dict, by_epoch: bool) -> None:
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        self.saved_iter = meta['iter']
        if is_main_process():
            with whole_file(Path(runner.work_dir) / LAST) as temporary:
                temporary.write_text(self.last_ckpt)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        backend = self.file_backend
        self.file_backend = later = _RemovesLater(backend)
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        # A resumed training may write the same name again.
        of_each_score = getattr(self, 'best_ckpt_path_dict', {})
        later.carry_out(but=[getattr(self, 'best_ckpt_path', None), *of_each_score.values()])


def _remove_remains(folder: Path) -> None:
    """What a kill while writing left, under names that nothing reads."""
    for path in folder.glob('.*.pth.*.tmp'):
        path.unlink()


def newest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """The newest checkpoint of a training that is whole, to resume from.

    Args:
        work_dir: of the training. The folder that its ``last_checkpoint`` points to is looked
            through as well.

    Returns:
        its path; None if there is no file at all. Those passed over are printed with the reason.

    Raises:
        CheckpointError: there are checkpoints and none can be resumed from.
    """
    passed_over = []
    for path in _newest_first(Path(work_dir)):
        try:
            content = read_checkpoint(path)
            if 'message_hub' not in content or 'iter' not in content['meta']:
                raise CheckpointError(f'{path} has no state of a training')
        except (CheckpointError, OSError) as error:
            print_log(f'--resume passes over {path}: {error}', 'current')
            passed_over.append(str(path))
        else:
            return str(path)
    if passed_over:
        raise CheckpointError(
            f'--resume: none of {passed_over} can be resumed from; remove them, or name another '
            'checkpoint or --work-dir'
        )
    return None


def _newest_first(work_dir: Path) -> Iterator[Path]:
    folders = {work_dir}
    last = work_dir / LAST
    if last.is_file() and (named := last.read_text().strip()):
        # A moved folder has its checkpoints with it.
        folders.add(Path(named).parent)
    found = {
        path.resolve(): path
        for folder in sorted(folders)
        for path in folder.glob('*.pth')
        if not path.name.startswith('best_')
    }
    yield from sorted(found.values(), key=lambda path: path.stat().st_mtime_ns, reverse=True)

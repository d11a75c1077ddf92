"""Atomic checkpoints that survive a kill at any moment, and the search for the newest one."""

from collections import deque
from pathlib import Path
from typing import Any, Deque, Iterable, List, Optional, Tuple, Union

import torch
from mmengine.dist import all_gather_object, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...checkpoints import (
    CheckpointError,
    atomic_checkpoint,
    check_finite,
    constants,
    damaged_part,
    non_finite,
    read_checkpoint,
    remove_lost_shards,
    remove_shards,
)
from ...checkpoints.safe_unpickle import safe_globals
from ...utils import remove_temporary_files, unlock_folders
from ...utils.messages import log_warning
from ...utils.suggest import shorten
from ..distributed.launch import raise_on_all_processes
from ..model import unwrapped
from ..runner.work_dir_lock import lock_work_dir

# File name of the state that an interrupted training saves.
INTERRUPTED = 'interrupted.pth'
LAST = 'last_checkpoint'
ATOMIC = dict(backend='atomic')


@register_backend('atomic')
class AtomicBackend(LocalBackend):
    """File backend for local checkpoints, which writes atomically and verifies the content."""

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_checkpoint(path) as temporary:
            temporary.write_bytes(obj)
            with temporary.open('rb') as file:
                if damaged_part(file):
                    raise CheckpointError(f'{path}: the disk does not give back what was written')

    def remove(self, filepath: Union[str, Path]) -> None:
        super().remove(filepath)
        remove_shards(Path(filepath))


class _DeferredRemoval:
    """File backend wrapper whose ``remove`` is deferred until :meth:`remove_pending`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.waiting: List[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['backend'], name)

    def remove(self, path: str) -> None:
        self.waiting.append(path)

    def remove_pending(self, but: Iterable[Optional[str]]) -> None:
        for path in set(self.waiting).difference(but):
            self.backend.remove(path)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook with checkpoints that survive a kill, a full disk or a power cut.

    A checkpoint and ``last_checkpoint`` are written atomically. Older checkpoints are removed only
    after the new one was read back. If a hook has added objects that :func:`read_checkpoint`
    refuses, the hook logs a warning and keeps the older ones. NaN or infinite weights are not
    written. While the training runs, its folders are locked against other trainings.
    ``mmlinattn train`` uses this hook in place of ``CheckpointHook``.

    Args:
        others: see MMEngine's CheckpointHook. ``out_dir`` may also be an address of another file
            backend. The hook then guarantees only the order of writing and removing.

    Raises:
        CheckpointError: while training, a checkpoint cannot be written, or its weights are NaN or
            infinite; older checkpoints stay unchanged.
        mmlinattn.utils.FolderInUse: at the start, another training uses one of the folders.

    Example:
        >>> default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=2))
    """

    # Set by MMEngine; the file backend is one of MMEngine's or a _DeferredRemoval.
    backend_args: Optional[dict]
    file_client_args: Optional[dict]
    file_backend: Any
    keep_ckpt_ids: Deque[int]

    # Number of iterations in the newest checkpoint, None before the first.
    saved_iter: Optional[int] = None

    def before_train(self, runner: Runner) -> None:
        local = (None, dict(backend='local'), dict(backend='disk'))
        if (
            '://' not in str(self.out_dir or runner.work_dir)
            and self.backend_args in local
            and self.file_client_args in local
        ):
            self.backend_args, self.file_client_args = dict(ATOMIC), None
        super().before_train(runner)
        lock_work_dir(runner.work_dir)
        if self.backend_args == ATOMIC and lock_work_dir(self.out_dir) and is_main_process():
            remove_temporary_files(Path(self.out_dir))
            remove_lost_shards(Path(self.out_dir))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Raise CheckpointError if weights are NaN or infinite.

        The hook runs after hooks that set weights, such as EMAHook.
        """
        model = unwrapped(runner.model)
        weights = {
            name: value
            for section in ('state_dict', 'ema_state_dict')
            for name, value in checkpoint.get(section, {}).items()
        }
        found = non_finite(weights, may_be_infinite=constants(model))
        if any(hasattr(value, 'to_local') for value in weights.values()):
            # Each process has only its shard of such tensors.
            found = sorted({name for names in all_gather_object(found) for name in names})
        if found:
            raise CheckpointError(
                f'the training has diverged by iteration {checkpoint["meta"]["iter"]}: '
                f'{len(found)} weights are NaN or infinite: {shorten(found)}. No checkpoint of '
                'them is written and older ones stay; resume from one with a lower learning rate'
            )

    def save_interrupted(self, runner: Runner, iteration: int) -> None:
        """Save the state after ``iteration`` iterations as ``interrupted.pth``.

        The next regular checkpoint replaces it.
        """
        self.last_ckpt = self.file_backend.join_path(self.out_dir, INTERRUPTED)
        meta = dict(epoch=runner.epoch, iter=iteration)
        with raise_on_all_processes():
            self._save(runner, INTERRUPTED, meta, by_epoch=False)
            if is_main_process():
                self._can_be_read(self.last_ckpt)  # or log a warning

    def _save_checkpoint(self, runner: Runner) -> None:
        with raise_on_all_processes():
            super()._save_checkpoint(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        outdated = []
        if self.max_keep_ckpts > 0:
            kept = [kept for kept in self.keep_ckpt_ids if kept != step]
            outdated = kept[: max(len(kept) + 1 - self.max_keep_ckpts, 0)]
            # If a kill comes before these are removed, the resumed training removes them.
            runner.message_hub.update_info('keep_ckpt_ids', [*kept, step])
            self.keep_ckpt_ids = deque([*kept, step], self.max_keep_ckpts)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._save(runner, name, meta, self.by_epoch)
        if self.max_keep_ckpts > 0:
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        if is_main_process() and self._can_be_read(self.last_ckpt):
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
            with atomic_checkpoint(Path(runner.work_dir) / LAST) as temporary:
                temporary.write_text(self.last_ckpt)

    def _can_be_read(self, path: str) -> bool:
        if self.backend_args != ATOMIC:
            return True
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            log_warning(f'--resume will refuse this checkpoint, and older ones are kept: {error}')
            return False
        return True

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        left = self.file_backend.join_path(self.out_dir, INTERRUPTED)
        if is_main_process() and self.last_ckpt != left and self.file_backend.isfile(left):
            self.file_backend.remove(left)
        unlock_folders()

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        backend = self.file_backend
        self.file_backend = later = _DeferredRemoval(backend)
        try:
            with raise_on_all_processes():
                super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        # A resumed training may write the same name again.
        of_each_score = getattr(self, 'best_ckpt_path_dict', {})
        later.remove_pending(but=[getattr(self, 'best_ckpt_path', None), *of_each_score.values()])


def newest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """Return the newest intact checkpoint of a training, to resume from.

    Args:
        work_dir: work directory of the training. ``last_checkpoint`` there names the newest
            checkpoint, unless the training was killed before it was updated. A file of the same
            name in ``work_dir`` has priority over a path in another folder, since a copied work
            directory has its own checkpoints.

    Returns:
        The path, or None if there is no checkpoint. Skipped files are logged with the reason.

    Raises:
        CheckpointError: there are checkpoints, or ``last_checkpoint``, but none can be resumed
            from.
    """
    work_dir = Path(work_dir)
    passed_over = []
    for path in _candidates(work_dir):
        try:
            content = read_checkpoint(path)
            if 'message_hub' not in content or 'iter' not in content['meta']:
                raise CheckpointError(f'{path} has no state of a training')
            check_finite(path, content['state_dict'], may_be_infinite=content['state_dict'])
        except (CheckpointError, OSError) as error:
            print_log(f'--resume passes over {path}: {error}', 'current')
            passed_over.append(str(path))
        else:
            return str(path)
    if passed_over:
        raise CheckpointError(
            f'--resume: none of {passed_over} can be resumed from; remove them and '
            f'{work_dir / LAST}, or name another checkpoint or --work-dir'
        )
    return None


def _candidates(work_dir: Path) -> List[Path]:
    """Return candidates, best first: later than ``last_checkpoint``, itself, the others by age."""
    named = _named(work_dir)
    folders = {work_dir}
    if named and named.parent.name == work_dir.name:
        folders.add(named.parent)  # out_dir contains a folder with the name of the work directory
    suffixes = {'.pth', named.suffix} if named else {'.pth'}
    files = {
        path
        for folder in folders
        for suffix in suffixes
        for path in folder.glob(f'*{suffix}')
        if path.is_file() and not path.name.startswith('best_')
    }
    if not named:
        return sorted(files, key=_age, reverse=True)
    files.discard(named)
    ages = {path: _age(path) for path in files}
    own = _age(named) if named.is_file() else (0, 0)
    # Require a later time and more iterations. The times alone may be those of a copy, the
    # iterations alone those of an older training in the same folder.
    newer = [path for path, age in ages.items() if age[0] > own[0] and age[1] > own[1]]
    rest = files.difference(newer)
    return [
        *sorted(newer, key=ages.__getitem__, reverse=True),
        named,
        *sorted(rest, key=ages.__getitem__, reverse=True),
    ]


def _named(work_dir: Path) -> Optional[Path]:
    last = work_dir / LAST
    text = last.read_text().strip() if last.is_file() else ''
    if not text:
        return None
    here = work_dir / Path(text).name
    return here if here.is_file() else Path(text)


def _age(path: Path) -> Tuple[int, int]:
    """Return the modification time and the number of iterations, -1 if unreadable."""
    try:
        with safe_globals():
            meta = torch.load(path, map_location='cpu', mmap=True, weights_only=True)['meta']
        iteration = int(meta['iter'])
    except Exception:  # torch.load raises many types; read_checkpoint reports the error later
        iteration = -1
    return path.stat().st_mtime_ns, iteration

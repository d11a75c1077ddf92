"""Checkpoints that survive a kill at any moment, and the search for the newest one."""

from pathlib import Path
from typing import Any, List, Optional, Union

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...checkpoints import CheckpointError, read_checkpoint
from ...utils import atomic_write, remove_temporaries
from ...utils.messages import log_warning

LAST = 'last_checkpoint'  # MMEngine's file with the name of the newest checkpoint


class AtomicBackend(LocalBackend):
    """File backend that writes atomically and postpones the removal of files."""

    def __init__(self) -> None:
        self.outdated: List[str] = []

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(Path(filepath)) as temporary:
            temporary.write_bytes(obj)

    def remove(self, filepath: Union[str, Path]) -> None:
        self.outdated.append(str(filepath))


def atomic_backend() -> dict:
    """Register :class:`AtomicBackend` and return the ``backend_args`` that name it."""
    register_backend('atomic', AtomicBackend, force=True)
    return dict(backend='atomic')


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook with checkpoints that survive a kill, a full disk or a power cut.

    A checkpoint is written to a temporary file, which then takes its name. Older checkpoints are
    removed after that. MMEngine's hook removes them first and writes the new one in place.

    Args:
        args, kwargs: see MMEngine's CheckpointHook, without ``backend_args``: the checkpoints are
            in a folder.

    Raises:
        ValueError: ``backend_args``, ``file_client_args`` or an address as ``out_dir``.
        mmlinattn.utils.WriteError: while training, a checkpoint cannot be written. Older ones stay.

    Example:
        >>> default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=2))
    """

    file_backend: AtomicBackend
    backend_args: Optional[dict]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.backend_args or self.file_client_args or '://' in str(self.out_dir):
            raise ValueError(
                f'AtomicCheckpointHook writes to a folder, got out_dir={self.out_dir!r}, '
                f"backend_args={self.backend_args}: use MMEngine's CheckpointHook there"
            )
        self.backend_args = atomic_backend()

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if is_main_process():
            remove_temporaries(Path(self.out_dir))

    def _save_checkpoint(self, runner: Runner) -> None:
        super()._save_checkpoint(runner)
        self._remove_outdated()

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._remove_outdated()

    def _remove_outdated(self) -> None:
        # A resumed training may have written a file of the same name again.
        best = [getattr(self, 'best_ckpt_path', None)]
        best += getattr(self, 'best_ckpt_path_dict', {}).values()
        for path in {*self.file_backend.outdated}.difference([self.last_ckpt, *best]):
            Path(path).unlink(missing_ok=True)
        self.file_backend.outdated = []


def newest_checkpoint(work_dir: Union[str, Path]) -> Optional[str]:
    """Return the newest intact checkpoint of a work directory, or None if there is no checkpoint.

    The first choice is the one that ``last_checkpoint`` names, or a file of its name in
    ``work_dir``, which may be a copy of another folder. Others follow by their age, and the named
    one of another work directory comes last.

    Raises:
        CheckpointError: there are checkpoints, but none can be resumed from.
    """
    last = Path(work_dir) / LAST
    paths = [path for path in last.parent.glob('*.pth') if not path.name.startswith('best_')]
    paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    if last.is_file() and (name := last.read_text().strip()):
        own = last.with_name(Path(name).name)
        named = own if own.is_file() else Path(name)
        is_copy = named != own and named.with_name(LAST).is_file()
        paths.insert(len(paths) if is_copy else 0, named)
    for path in paths:
        try:
            content = read_checkpoint(path)
            if 'message_hub' not in content or 'iter' not in content['meta']:
                raise CheckpointError(f'{path} has no state of a training')
            return str(path)
        except (CheckpointError, OSError) as error:
            log_warning(f'--resume passes over {path}: {error}')
    if paths:
        raise CheckpointError(
            f'--resume: no checkpoint in {work_dir} can be resumed from; remove them and {last}, '
            'or name another checkpoint or --work-dir'
        )
    return None

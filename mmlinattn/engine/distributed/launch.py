"""Start, communication and end of distributed processes."""

import os
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, Optional, TypeVar

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    get_rank,
    init_dist,
    is_distributed,
    is_main_process,
)
from torch import distributed as dist

from ...utils import nodes

T = TypeVar('T')


def set_launcher(cfg: Config, launcher: str) -> None:
    """Join the processes started by ``--launcher``, with gloo if there is no GPU.

    ``env_cfg.dist_cfg`` of the config has MMEngine's options for this. Its ``timeout`` is the time
    in seconds that a process waits for the others.

    Raises:
        ValueError: torchrun started several processes, but ``launcher`` is ``'none'``, so each
            would train alone; or, on the CPU, it is another one than ``'pytorch'``.
    """
    cfg.launcher = launcher
    if launcher == 'none':
        if 'TORCHELASTIC_RUN_ID' in os.environ and int(os.environ.get('WORLD_SIZE', 1)) > 1:
            raise ValueError(
                f'--launcher is none in one of {os.environ["WORLD_SIZE"]} processes of torchrun: '
                'it is pytorch that joins them'
            )
    elif get_device() == 'cpu':
        init_gloo_group(launcher, group_timeout(cfg))
    elif not is_distributed():
        init_dist(launcher, **_dist_cfg(cfg))


def check_restarts(resume: Optional[str]) -> None:
    """Check that processes restarted by torchrun (``--max-restarts``) can resume.

    Raises:
        ValueError: ``--resume`` is not ``'auto'``, so they would begin again or return to the same
            checkpoint forever; or they would share a store with ended processes and read the
            addresses of those.
    """
    restarts = int(os.environ.get('TORCHELASTIC_MAX_RESTARTS', 0))
    if restarts and resume != 'auto':
        raise ValueError(
            f'torchrun --max-restarts {restarts} goes with --resume and no value: a training that '
            'is started again then goes on from its newest checkpoint'
        )
    if restarts and os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True':
        raise ValueError(
            f'torchrun --max-restarts {restarts} needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its '
            'environment, and --standalone or --rdzv-backend c10d; tools/dist_train.sh sets both'
        )


def group_timeout(cfg: Config) -> Optional[timedelta]:
    """Return the timeout of processes that wait for each other, or None if it is not set."""
    seconds = _dist_cfg(cfg).get('timeout')
    return None if seconds is None else timedelta(seconds=seconds)


def _dist_cfg(cfg: Config) -> dict:
    return (cfg.get('env_cfg') or {}).get('dist_cfg') or {}


def init_gloo_group(launcher: str, timeout: Optional[timedelta] = None) -> None:
    """Join the processes that ``launcher`` started, with gloo.

    Args:
        launcher: must be ``'pytorch'``.
        timeout: longest wait for other processes; None for 30 minutes.

    Raises:
        ValueError: another launcher.
    """
    if launcher != 'pytorch':
        raise ValueError(f'--launcher {launcher} needs GPUs; on the CPU use pytorch (torchrun)')
    # Threads of several processes on the same cores would slow each other down.
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', timeout=timeout)


def broadcast_from_first(compute: Callable[[], T]) -> T:
    """Call ``compute()`` in the first process and return its result, or raise its error, in all.

    Use it for decisions on which all processes must agree but may see different states. For
    example, machines may see a shared folder differently for a while.
    """
    result: list = [None, None]
    if is_main_process():
        try:
            result[0] = compute()
        except Exception as error:
            result[1] = error
    broadcast_object_list(result)
    if result[1] is not None:
        raise result[1]
    return result[0]


class PeerFailed(RuntimeError):
    """Error of another process, which ends this one too; the message names that process."""


@contextmanager
def raise_on_all_processes() -> Iterator[None]:
    """Raise an error of one process in all of them, so that none waits for the failed one.

    All processes must enter the block. Blocks must not be nested.

    Raises:
        PeerFailed: another process had an error, and this one had none.
    """
    failed = None
    try:
        yield
    except Exception as error:
        failed = error
    text = None if failed is None else f'{type(failed).__name__} in process {get_rank()}: {failed}'
    texts = [found for found in all_gather_object(text) if found]
    if failed is not None:
        raise failed
    if texts:
        raise PeerFailed(texts[0])


def check_same(cfg: Config, **options: Any) -> None:
    """Raise ValueError in all processes if their config or command-line options differ.

    The message names the first difference and its values.
    """
    settings_here = dict(cfg._cfg_dict.to_dict(), **options)
    own = {place: _described(value) for place, value in nodes(settings_here)}
    everyones = all_gather_object(own)
    for place in sorted(set().union(*everyones)):
        values = [settings.get(place, 'missing') for settings in everyones]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise ValueError(
                f'{place} of the config is {values[0]} in process 0 and {values[other]} in process '
                f'{other}; start all processes with the same config and options'
            )


def _described(value: Any) -> str:
    """Return a text for a value of a config that contains no memory addresses."""
    if isinstance(value, (dict, list, tuple)):
        return f'{type(value).__name__} of {len(value)}'
    if isinstance(value, (str, int, float, complex, type(None))):
        return repr(value)
    named = value if hasattr(value, '__qualname__') else type(value)
    return f'{named.__module__}.{named.__qualname__}'


def cpu_group(cfg: Config) -> Optional[dist.ProcessGroup]:
    """Return a group of all processes for :func:`any_process`, or None for a single process.

    Its flags are on the CPU: with NCCL every iteration would have to wait for the GPU.
    """
    return dist.new_group(backend='gloo', timeout=group_timeout(cfg)) if is_distributed() else None


def any_process(flag: bool, group: Optional[dist.ProcessGroup]) -> bool:
    """Return True if the flag is set in any process of the group. All processes must call it."""
    if group is None:
        return flag
    flags = torch.tensor(int(flag))
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    return bool(flags)


def leave_process_group() -> None:
    """End the process group in all processes together; do nothing in a single process.

    A gloo thread may still hold a tensor of the last collective when its process exits. The
    interpreter's shutdown may then abort it ("terminate called without an active exception").

    The thread needs Python's lock to free that tensor, so it gets the lock before the group ends.
    Else DistributedDataParallel, the group's last owner, may wait for the thread with the lock in
    its hands, for ever.
    """
    if is_distributed():
        dist.barrier()
        time.sleep(0.05)  # releases Python's lock
        dist.destroy_process_group()

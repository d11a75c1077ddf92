"""Start and end of distributed work."""

import os
from datetime import timedelta
from typing import Callable, Optional, TypeVar

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast_object_list, init_dist, is_distributed, is_main_process

T = TypeVar('T')


def set_launcher(cfg: Config, launcher: str) -> None:
    """``--launcher``: joins the processes that it started, by gloo where there is no GPU.

    ``env_cfg.dist_cfg`` of the config has MMEngine's options of it; ``timeout``, in seconds, is how
    long a process waits for the others.

    Raises:
        ValueError: no launcher for a process that torchrun started beside others, which would
            train alone; on the CPU, another one than ``'pytorch'``.
    """
    cfg.launcher = launcher
    if launcher == 'none':
        if 'TORCHELASTIC_RUN_ID' in os.environ and int(os.environ.get('WORLD_SIZE', 1)) > 1:
            raise ValueError(
                f'--launcher is none in one of {os.environ["WORLD_SIZE"]} processes of torchrun: '
                'it is pytorch that joins them'
            )
    elif get_device() == 'cpu':
        join_on_cpu(launcher, waiting_time(cfg))
    elif not is_distributed():
        init_dist(launcher, **_dist_cfg(cfg))


def check_restarts(resume: Optional[str]) -> None:
    """Can processes that torchrun starts again (``--max-restarts``) go on?

    Raises:
        ValueError: ``--resume`` is not ``'auto'``, so that they would begin again, or go back to
            one checkpoint for ever; or they would share a store with those that have ended, whose
            addresses they would read there.
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


def waiting_time(cfg: Config) -> Optional[timedelta]:
    """How long processes wait for each other; None if the config does not say."""
    seconds = _dist_cfg(cfg).get('timeout')
    return None if seconds is None else timedelta(seconds=seconds)


def _dist_cfg(cfg: Config) -> dict:
    return (cfg.get('env_cfg') or {}).get('dist_cfg') or {}


def join_on_cpu(launcher: str, timeout: Optional[timedelta] = None) -> None:
    """Joins the processes that ``launcher`` started by gloo, to wait that long for each other at
    most (None: 30 minutes); ValueError if the launcher is another than ``'pytorch'``."""
    if launcher != 'pytorch':
        raise ValueError(f'--launcher {launcher} needs GPUs; on the CPU use pytorch (torchrun)')
    # Multi-threaded processes on the same cores spin against each other.
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', timeout=timeout)


def of_first_process(compute: Callable[[], T]) -> T:
    """What ``compute()`` gives, or raises, in the first process; the others do not call it.

    For what all must agree upon and each might see otherwise, such as a shared folder, of which
    every machine has its own view for a while.
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


def leave_process_group() -> None:
    """Ends distributed work in all processes together; does nothing in a single process.

    A process that exits while a thread of gloo still holds a tensor of the last collective may be
    aborted by the interpreter's shutdown ("terminate called without an active exception").
    """
    if is_distributed():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

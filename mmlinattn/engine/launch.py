"""Start, communication and end of distributed processes."""

import logging
import os
import time
import warnings
from datetime import timedelta
from typing import Callable, TypeVar

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast_object_list, init_dist, is_distributed, is_main_process
from mmengine.logging import MMLogger

T = TypeVar('T')


def set_launcher(cfg: Config, launcher: str) -> None:
    """Join the processes started by ``--launcher``, with gloo if there is no GPU.

    Only the first process prints warnings and messages from then on.
    """
    cfg.launcher = launcher
    options = (cfg.get('env_cfg') or {}).get('dist_cfg') or {}
    if launcher == 'none':
        if 'TORCHELASTIC_RUN_ID' in os.environ and int(os.environ.get('WORLD_SIZE', 1)) > 1:
            raise ValueError(
                f'--launcher is none in one of {os.environ["WORLD_SIZE"]} processes of torchrun: '
                'it is pytorch that joins them'
            )
    elif get_device() != 'cpu':
        init_dist(launcher, **options)
    elif launcher == 'pytorch':
        # Threads of several processes on the same cores would slow each other down.
        torch.set_num_threads(1)
        seconds = options.get('timeout')
        timeout = None if seconds is None else timedelta(seconds=seconds)
        torch.distributed.init_process_group('gloo', timeout=timeout)
    else:
        raise ValueError(f'--launcher {launcher} needs GPUs; on the CPU use pytorch (torchrun)')
    if not is_main_process():
        warnings.simplefilter('ignore')
        for handler in MMLogger.get_current_instance().handlers:
            handler.setLevel(logging.ERROR)


def broadcast_from_first(compute: Callable[[], T]) -> T:
    """Call ``compute()`` in the first process and return its result, or raise its error, in all.

    Machines may see a shared folder differently for a while, but must decide alike.
    """
    result: list = [None, None]
    patient = None
    if is_distributed() and torch.distributed.get_backend() == 'nccl':
        # NCCL ends processes that wait for 10 minutes, such as for a look at every image.
        patient = torch.distributed.new_group(backend='gloo', timeout=timedelta(days=1))
    if is_main_process():
        try:
            result[0] = compute()
        except Exception as error:
            result[1] = error
    broadcast_object_list(result, group=patient)
    if result[1] is not None:
        raise result[1]
    return result[0]


def leave_process_group() -> None:
    """End the process group in all processes together; do nothing in a single process.

    A gloo thread may still hold a tensor of the last collective, which it frees under Python's
    lock; the shutdown may abort it ("terminate called without an active exception").
    """
    if is_distributed():
        torch.distributed.barrier()
        time.sleep(0.05)  # releases Python's lock
        torch.distributed.destroy_process_group()

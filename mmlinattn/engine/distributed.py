"""Start and end of distributed work."""

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_distributed


def set_launcher(cfg: Config, launcher: str) -> None:
    """``--launcher``; where there is no GPU the processes are joined by gloo, here.

    MMEngine's own start of distributed training needs a GPU. Without one, only ``'pytorch'``
    serves; another launcher raises ValueError.
    """
    cfg.launcher = launcher
    if launcher != 'none' and get_device() == 'cpu':
        join_on_cpu(launcher)


def join_on_cpu(launcher: str) -> None:
    """Joins the processes that ``launcher`` started by gloo; ValueError if that is another than
    ``'pytorch'``."""
    if launcher != 'pytorch':
        raise ValueError(f'--launcher {launcher} needs GPUs; on the CPU use pytorch (torchrun)')
    # Multi-threaded processes on the same cores spin against each other.
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')


def leave_process_group() -> None:
    """Ends distributed work in all processes together; does nothing in a single process.

    A process that exits while a thread of gloo still holds a tensor of the last collective may be
    aborted by the interpreter's shutdown ("terminate called without an active exception").
    """
    if is_distributed():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

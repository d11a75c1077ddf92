"""Choice of the batch size of a training by the estimate of its memory (``--auto-batch``)."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Tuple

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.registry import DATASETS
from torch import nn

from ..engine import build_model
from ..engine.distributed.launch import broadcast_from_first
from .operators import training_step
from .training_estimate import AUTOCAST, is_mixed_precision, step_memory
from .training_memory import training_memory

GIB = 2**30
# Share of the available memory to fill. On a CPU a training took up to 1.5 times the estimate.
FRACTION = 0.6
# Images that are read to learn the size of a batch.
SAMPLES = 32


@dataclass(frozen=True)
class BatchSize:
    """Result of :func:`largest_batch`, in bytes of one process.

    Args:
        batch: images per process.
        memory: estimate for this batch.
        available: memory that is available now.
        shape: (H, W) of the images.
        images: images per epoch and process, which limit the batch.
    """

    batch: int
    memory: float
    available: float
    shape: Tuple[int, int]
    images: int


def set_auto_batch(cfg: Config, fraction: float) -> str:
    """Set the batch size of a training to the largest that fits (``--auto-batch``).

    The learning rate is scaled as without this option: if ``auto_scale_lr.enable`` is set.

    Args:
        cfg: training config, changed in place. With several processes the first one decides.
        fraction: share of the available memory to fill, in (0, 1].

    Returns:
        a message with the batch size, the estimate and the available memory.

    Raises:
        ValueError: not even one image fits, or see :func:`largest_batch`.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f'--auto-batch must be in (0, 1], got {fraction}')
    if cfg.get('strategy'):
        raise ValueError(
            '--auto-batch does not estimate a training with a strategy, such as FSDP2: set '
            'train_dataloader.batch_size'
        )
    found = broadcast_from_first(lambda: largest_batch(cfg, available_memory(), fraction))
    loader = cfg.train_dataloader
    before, loader.batch_size = loader.get('batch_size'), found.batch
    scaling = cfg.get('auto_scale_lr') or {}
    why_fewer = ', all of an epoch' if found.batch == found.images else ''
    return (
        f'--auto-batch: {found.batch} images of {found.shape[0]}x{found.shape[1]} a process'
        f'{why_fewer} (config: {before}); estimated memory {found.memory / GIB:.1f} GiB, '
        f'limit {100 * fraction:g} % of {found.available / GIB:.1f} GiB. '
        + (
            f'The learning rate is scaled from {scaling["base_batch_size"]} images a step.'
            if scaling.get('enable')
            else 'The learning rate stays; --auto-scale-lr scales it.'
        )
    )


def largest_batch(cfg: Config, available: float, fraction: float = FRACTION) -> BatchSize:
    """Return the largest batch whose estimated memory fits.

    The memory is linear in the batch, so two batches give all. Losses of detectors, matching of
    targets, an average of the weights and the loading of data are not estimated.

    Args:
        cfg: training config. Some of its images are read.
        available: bytes.
        fraction: share of them to fill.

    Raises:
        ValueError: not even one image fits.
    """
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    shape = batch_shape(cfg, dataset)
    precision = 'bf16' if get_device() == 'cpu' else 'fp16'
    dtype = AUTOCAST[precision] if is_mixed_precision(cfg) else None
    (kept,) = training_memory(cfg, (1,)).values()
    model, processes = build_model(cfg), get_world_size()
    loss = segmentation_loss(model, shape)

    def memory(batch: int) -> float:
        step = training_step(model, shape, batch, dtype)
        return sum(step_memory(step, kept, {}, processes).values()) + batch * loss

    one, two = memory(1), memory(2)
    batch = 1 + math.floor((fraction * available - one) / (two - one))
    if batch < 1:
        raise ValueError(
            f'--auto-batch: one image of {shape[0]}x{shape[1]} needs an estimated '
            f'{one / GIB:.1f} GiB, but {100 * fraction:g} % of the available {available / GIB:.1f} '
            'GiB are allowed: take smaller images, with_cp=True in the backbone, --amp or a larger '
            'fraction'
        )
    images = max(1, len(dataset) // processes)
    batch = min(batch, images)
    return BatchSize(batch, one + (batch - 1) * (two - one), available, shape, images)


def segmentation_loss(model: nn.Module, shape: Tuple[int, int]) -> int:
    """Return the bytes per image of the losses of a segmentor, which see maps of full size.

    These are the logits, their log-softmax and the gradients of both, in float32, of each head.

    Example:
        >>> segmentation_loss(nn.Conv2d(3, 3, 1), (512, 512))
        0
    """
    heads: List[Any] = [module for module in model.modules() if hasattr(module, 'conv_seg')]
    return sum(4 * 4 * head.num_classes * math.prod(shape) for head in heads)


def batch_shape(cfg: Config, dataset: BaseDataset) -> Tuple[int, int]:
    """Return the (H, W) of a batch: the largest sides of some images, padded as the model pads."""
    number = min(SAMPLES, len(dataset))
    samples = (dataset[i * len(dataset) // number] for i in range(number))
    sides = [sample['inputs'].shape[-2:] for sample in samples]
    options = cfg.model.get('data_preprocessor') or {}
    divisor, least = options.get('pad_size_divisor') or 1, options.get('size') or (1, 1)
    height, width = (
        math.ceil(max(*values, smallest) / divisor) * divisor
        for values, smallest in zip(zip(*sides), least)
    )
    return height, width


def available_memory() -> float:
    """Return the free bytes of the GPU of this process, or its share of the available RAM.

    Raises:
        ValueError: the system does not tell its available memory.

    Example:
        >>> available_memory() > 0
        True
    """
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return available_ram() / int(os.environ.get('LOCAL_WORLD_SIZE', 1))


def available_ram() -> float:
    """Return the available bytes of RAM, of the container if it has a limit.

    Raises:
        ValueError: the system does not tell its available memory.
    """
    found = [*_of_system(Path('/proc/meminfo')), *_of_container(Path('/sys/fs/cgroup'))]
    if not found:
        raise ValueError(
            'this system has no /proc/meminfo, so that its available memory is unknown: choose the '
            'batch size yourself'
        )
    return min(found)


def _of_system(meminfo: Path) -> List[float]:
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    return [1024.0 * int(line.split()[1]) for line in lines if line.startswith('MemAvailable:')]


def _of_container(group: Path) -> List[float]:
    """Return what a control group leaves, without the cache of files, which the system gives up."""
    limit = group / 'memory.max'
    if not limit.exists() or limit.read_text().strip() == 'max':
        return []
    stat = dict(line.split() for line in (group / 'memory.stat').read_text().splitlines())
    used = int((group / 'memory.current').read_text()) - int(stat['inactive_file'])
    return [float(limit.read_text()) - used]

"""Time and memory of a training, estimated with a roofline model of its operators.

An operator takes the longest of three times: its products over the peak FLOP/s, its bytes over the
memory bandwidth, and the minimal launch time. Each peak is scaled by the share that measured models
reach (:class:`Efficiency`). Gradients are exchanged by ring all-reduce.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from mmengine.config import Config

from ..engine import build_model
from ..utils import dicts
from .devices import Device
from .operators import TrainingStep, training_step
from .training_memory import gathered_parameters, training_memory

# Autocast dtype of each precision; other precisions run without autocast.
AUTOCAST = dict(bf16=torch.bfloat16, fp16=torch.float16)
# Tensors that AdamW moves per float32 parameter: four reads and three writes.
UPDATE = 7
BUCKET = 25 * 2**20  # DDP bucket in bytes: the last one cannot overlap with the backward pass
# Memory reserved by libraries, and the share lost to fragmentation of the allocator.
RESERVED, GAPS = 1.0e9, 0.06
# Images per epoch by dataset class, with a description and the annotation files they are valid for.
KNOWN_IMAGES = {
    'CocoDataset': (117_266, 'COCO train2017, images with a box', ('instances_train2017.json',)),
    'ImageNet': (1_281_167, 'ImageNet-1K train', ('', 'train.txt')),
    'CIFAR10': (50_000, 'CIFAR-10 train', ('',)),
    'CIFAR100': (50_000, 'CIFAR-100 train', ('',)),
    'CIFAR100Binary': (50_000, 'CIFAR-100 train', ('',)),
}
# Dataset wrappers that keep the length of the wrapped dataset.
SAME_LENGTH = ('MultiImageMixDataset',)


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peaks that a training reaches, and the minimal launch time.

    ``compute`` and ``mixed`` are fitted to two published trainings on eight V100, Mask R-CNN and
    DeiT-B. The others are assumed. docs/estimates.md compares with more trainings.

    Args:
        compute: share of the FLOP/s in float32.
        mixed: share of the FLOP/s in all other precisions.
        bandwidth: share of the memory bandwidth.
        link: share of the bandwidth of links and network.
        launch: seconds per kernel launch.
    """

    compute: float = 0.6
    mixed: float = 0.25
    bandwidth: float = 0.75
    link: float = 0.7
    launch: float = 8e-6

    def __post_init__(self) -> None:
        for name in ('compute', 'mixed', 'bandwidth', 'link'):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f'{name} must be in (0, 1], got {getattr(self, name)}')
        if self.launch < 0:
            raise ValueError(f'launch must not be negative, got {self.launch}')


@dataclass(frozen=True)
class TrainingEstimate:
    """Result of :func:`estimate_training`, in seconds and bytes of one process.

    Args:
        compute, bandwidth, launch: time of the operators that are bound by each.
        update: time of the optimizer step.
        products: multiply-accumulates of a step in one process.
        exchange: time to exchange gradients (and with FSDP2 the parameters) between processes.
        exposed: the part of ``exchange`` that does not overlap with computation.
        memory: bytes by purpose.
        capacity: memory of the device, bytes.
        images: images per step, over all processes.
        steps: steps of the schedule; None if the config does not define it.
        processes: number of processes.
        uncounted: operators that may contain products and were not counted.
        assumed: the number of images per epoch and the dataset, if it was not given.
    """

    compute: float
    bandwidth: float
    launch: float
    update: float
    products: int
    exchange: float
    exposed: float
    memory: Dict[str, float]
    capacity: float
    images: int
    steps: Optional[int]
    processes: int
    uncounted: Tuple[str, ...] = ()
    assumed: str = ''

    @property
    def step(self) -> float:
        """Seconds per step."""
        return self.compute + self.bandwidth + self.launch + self.update + self.exposed

    @property
    def hours(self) -> Optional[float]:
        """Hours of the schedule, without validation."""
        return None if self.steps is None else self.steps * self.step / 3600

    @property
    def fits(self) -> bool:
        return sum(self.memory.values()) <= self.capacity

    @property
    def limit(self) -> str:
        """The component that takes the most time, or a message that the memory does not suffice."""
        if not self.fits:
            return 'memory: take a smaller batch, checkpointing or FSDP2'
        parts = {
            'products': self.compute, 'bandwidth of the memory': self.bandwidth + self.update,
            'launches of small operators': self.launch, 'exchange between processes': self.exposed,
        }  # fmt: skip
        return max(parts, key=parts.__getitem__)


def estimate_training(
    cfg: Config,
    device: Device,
    processes: int,
    *,
    machines: Optional[int] = None,
    batch: Optional[int] = None,
    precision: Optional[str] = None,
    shape: Optional[Sequence[int]] = None,
    images: Optional[int] = None,
    shard: Optional[Sequence[str]] = None,
    checkpointing: Sequence[str] = (),
    efficiency: Efficiency = Efficiency(),
) -> TrainingEstimate:
    """Estimate time and memory of a training config.

    Data loading, losses and target assignment, augmentation on the device, auxiliary heads and
    validation are not included, nor the omissions of
    :func:`mmlinattn.analysis.operators.training_step`.

    Args:
        cfg: a training config of any of the three frameworks.
        device: one of ``DEVICES`` or your own.
        processes: processes over all machines, one per device.
        machines: default: as few as hold all processes.
        batch: images per process; default: the config's.
        precision: precision of the products, a key of ``device.flops``; default: that of mixed
            precision if the config uses it, else ``'fp32'``.
        shape: (H, W); default: from the config's pipeline, 4:3 images if it keeps ratios.
        images: images per epoch; default: known for COCO, ImageNet and CIFAR (also repeated and
            concatenated) with their own annotations and classes. Otherwise ``steps`` is None.
        shard: module classes that FSDP2 gathers one at a time; None for DDP.
        checkpointing: module classes that are recomputed in the backward pass.
        efficiency: shares of the peaks.

    Raises:
        ValueError: a number is below 1 or inconsistent with the others, the device lacks the
            precision, it has no network between machines, the model has no module of a given
            class, or the config lacks a required setting.

    Example:
        >>> from mmlinattn.analysis.devices import DEVICES
        >>> cfg = Config(dict(
        ...     model=dict(type='RAVLT', arch='tiny'),
        ...     optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        ... ))
        >>> options = dict(batch=8, shape=(224, 224))
        >>> one, eight = (estimate_training(cfg, DEVICES['h100'], n, **options) for n in (1, 8))
        >>> one.exchange, 0 < eight.exchange < eight.step, eight.fits
        (0, True, True)
    """
    if processes < 1:
        raise ValueError(f'processes must be positive, got {processes}')
    machines = -(-processes // device.per_machine) if machines is None else machines
    if machines < 1 or processes % machines:
        raise ValueError(f'{processes} processes do not spread evenly over {machines} machines')
    precision = precision or _precision(cfg, device)
    if precision not in device.flops:
        raise ValueError(f'precision {precision!r}: the device has {", ".join(device.flops)}')
    batch = (cfg.get('train_dataloader') or {}).get('batch_size') if batch is None else batch
    if batch is None or batch < 1:
        raise ValueError(f'batch must be a positive number of images a process, got {batch}')
    step = training_step(
        build_model(cfg), shape or image_shape(cfg), batch, AUTOCAST.get(precision), checkpointing
    )
    shares = dict.fromkeys(('compute', 'bandwidth', 'launch'), 0.0)
    backward = 0.0
    share = efficiency.compute if precision == 'fp32' else efficiency.mixed
    for operator in step.operators:
        times = dict(
            compute=2 * operator.products / (device.flops[precision] * share),
            bandwidth=operator.nbytes / (device.bandwidth * efficiency.bandwidth),
            launch=efficiency.launch if operator.nbytes else 0,
        )
        slowest = max(times, key=times.__getitem__)
        shares[slowest] += times[slowest]
        backward += times[slowest] if operator.backward else 0
    steps, assumed = _steps(cfg, batch * processes, images)
    states = training_memory(cfg, (processes if shard is not None else 1,))
    (kept,) = states.values()
    gathered = gathered_parameters(build_model(cfg), shard) if shard is not None else {}
    exchange, exposed = _exchange(
        device, processes, machines, efficiency, kept, shard is not None,
        backward if shard is None else sum(shares.values()),
    )  # fmt: skip
    return TrainingEstimate(
        **shares,
        products=step.products,
        update=UPDATE * kept['parameters'] / (device.bandwidth * efficiency.bandwidth),
        exchange=exchange,
        exposed=exposed,
        memory=step_memory(step, kept, gathered, processes),
        capacity=device.memory,
        images=batch * processes,
        steps=steps,
        processes=processes,
        uncounted=tuple(sorted(step.uncounted)),
        assumed=assumed,
    )


def _exchange(
    device: Device, processes: int, machines: int, efficiency: Efficiency,
    kept: Dict[str, int], sharded: bool, computing: float,
) -> Tuple[float, float]:  # fmt: skip
    """Return the seconds of the exchange, and of its part that does not overlap."""
    if processes == 1:
        return 0, 0
    speed = device.link
    if machines > 1:
        if device.network is None:
            raise ValueError('the device has no network between machines: give its speed')
        # A ring enters and leaves each machine once, over all of its links.
        speed = min(speed, device.network * processes / machines)
    speed *= efficiency.link
    part = (processes - 1) / processes
    if sharded:
        # FSDP2 gathers full parameters in both passes and scatters full gradients in one.
        whole = processes * (2 * kept['parameters'] + kept['gradients'])
        exchange, last = part * whole / speed, 0.0
    else:
        # A ring all-reduce sends each gradient twice.
        exchange = 2 * part * kept['gradients'] / speed
        last = exchange * min(1, BUCKET / kept['gradients'])
    if not device.overlaps:
        return exchange, exchange
    return exchange, max(last, exchange - computing)


def step_memory(
    step: TrainingStep, kept: Dict[str, int], gathered: Dict[str, int], processes: int
) -> Dict[str, float]:
    """Return the bytes of a training process by purpose.

    Args:
        step: from :func:`mmlinattn.analysis.operators.training_step`.
        kept: from :func:`.training_memory.training_memory`.
        gathered: from :func:`.training_memory.gathered_parameters` with FSDP2, else empty.
        processes: number of processes.
    """
    memory: Dict[str, float] = {name: kept[name] for name in kept}
    if gathered:
        # Two blocks with their gradients: one computes while the next is gathered.
        memory['gathered'] = 2 * (2 * gathered['largest block'] + gathered['rest'])
    elif processes > 1:
        memory['buckets of gradients'] = kept['gradients']
    memory['activations'] = step.saved
    memory['backward pass'] = step.peak - step.saved
    memory['libraries and gaps'] = RESERVED + GAPS * sum(memory.values())
    return memory


def is_mixed_precision(cfg: Config) -> bool:
    """Return True if the optimizer wrapper of a training runs it under autocast."""
    return 'Amp' in str((cfg.get('optim_wrapper') or {}).get('type', ''))


def _precision(cfg: Config, device: Device) -> str:
    if not is_mixed_precision(cfg):
        return 'fp32'
    return 'bf16' if 'bf16' in device.flops else 'fp16'


def _steps(cfg: Config, images_a_step: int, images: Optional[int]) -> Tuple[Optional[int], str]:
    """Return the steps of the schedule, and a description of the assumed number of images."""
    if images is not None and images < 1:
        raise ValueError(f'images must be positive, got {images}')
    train_cfg = cfg.get('train_cfg') or {}
    if train_cfg.get('max_iters'):
        return train_cfg['max_iters'], ''
    if not train_cfg.get('max_epochs'):
        return None, ''
    assumed = ''
    if images is None:
        known = known_images((cfg.get('train_dataloader') or {}).get('dataset'))
        if known is None:
            return None, ''
        images, what = known
        assumed = f'{images} images an epoch ({what})'
    return train_cfg['max_epochs'] * math.ceil(images / images_a_step), assumed


def known_images(dataset: Any) -> Optional[Tuple[int, str]]:
    """Return the number of images per epoch and their name from a dataset config, or None.

    Example:
        >>> cifar = dict(type='CIFAR100', data_root='data')
        >>> known_images(dict(type='RepeatDataset', times=3, dataset=cifar))
        (150000, '3 x CIFAR-100 train')
        >>> known_images(dict(type='CocoDataset', ann_file='mine.json')) is None
        True
    """
    if not isinstance(dataset, dict):
        return None
    kind = dataset.get('type')
    name = kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', '')
    if name == 'ConcatDataset':
        configs = dataset.get('datasets') or ()
        parts = [known for part in configs if (known := known_images(part)) is not None]
        if not parts or len(parts) < len(configs):
            return None
        numbers, names = zip(*parts)
        return sum(numbers), ' + '.join(names)
    if name == 'RepeatDataset' or name in SAME_LENGTH:
        inner = known_images(dataset.get('dataset'))
        if inner is None or name in SAME_LENGTH:
            return inner
        return dataset['times'] * inner[0], f'{dataset["times"]} x {inner[1]}'
    number, what, files = KNOWN_IMAGES.get(name, (0, '', ()))
    own = (
        (dataset.get('metainfo') or {}).get('classes') or dataset.get('classes')
        or dataset.get('indices') or dataset.get('split') not in (None, '', 'train')
    )  # fmt: skip
    if own or str(dataset.get('ann_file') or '').rpartition('/')[2] not in files:
        return None
    return number, what


def image_shape(cfg: Config) -> Tuple[int, int]:
    """Return (H, W) of the images of a training pipeline, with the padding of the model.

    Several scales are averaged. If ratios are kept, the image is assumed to be 4:3.

    Raises:
        ValueError: the pipeline does not define the size.
    """
    size = None
    for _, transform in dicts((cfg.get('train_dataloader') or {}).get('dataset')):
        name = str(transform.get('type')).split('.')[-1]  # the last one decides
        if name in ('RandomCrop', 'RandomResizedCrop', 'CenterCrop'):
            side: Any = transform.get('crop_size', transform.get('scale'))
            size = (side, side) if isinstance(side, int) else tuple(side)
        elif name in ('Resize', 'RandomResize', 'RandomChoiceResize'):
            size = _resized(transform.get('scales') or [transform.get('scale')], transform)
    if size is None:
        raise ValueError('shape: the pipeline of the config does not tell the size of its images')
    divisor = (cfg.model.get('data_preprocessor') or {}).get('pad_size_divisor', 1)
    height, width = (math.ceil(side / divisor) * divisor for side in size)
    return height, width


def _resized(scales: List[Any], transform: dict) -> Optional[Tuple[int, int]]:
    """Return the mean (H, W) of a 4:3 image resized to each of the scales (W, H)."""
    if any(not isinstance(scale, (tuple, list)) for scale in scales):
        return None
    if transform.get('keep_ratio') or (transform.get('resize_cfg') or {}).get('keep_ratio'):
        heights = [min(min(scale), max(scale) * 3 / 4) for scale in scales]
        widths = [height * 4 / 3 for height in heights]
    else:
        widths, heights = zip(*scales)
    return round(sum(heights) / len(heights)), round(sum(widths) / len(widths))

"""Compare estimates of mmlinattn.analysis.training_estimate with measurements (docs/estimates.md).

    python benchmarks/estimate_accuracy.py --published      # seconds: nothing trains
    python benchmarks/estimate_accuracy.py --checkpointing  # minutes: two small models do a step
    python benchmarks/estimate_accuracy.py --here 1 2 4     # trains on gloo processes

Times are the minimum of several rounds. Nothing else should run at the same time.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import mmdet
import torch
import torch.distributed as dist
import torch.multiprocessing
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmpretrain.structures import DataSample
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import commit, machine
from mmlinattn.analysis.devices import DEVICES, Device
from mmlinattn.analysis.operators import training_step
from mmlinattn.analysis.training_estimate import Efficiency, TrainingEstimate, estimate_training
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import quiet

ROOT = Path(__file__).resolve().parents[1]
MMDET = Path(mmdet.__file__).parent / '.mim' / 'configs'


# --- Published ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A published training.

    Args:
        name: name of the model.
        config: config of this project or of MMDetection.
        gpus: number of V100.
        batch: images per GPU.
        seconds: seconds per step, as published or computed from published hours and epochs.
        source: publication.
        precision: precision of the products.
        memory: GiB that torch allocated, if published.
        change: changes the config to the published model.
        fits: True if the default efficiency was fitted to it.
    """

    name: str
    config: Path
    gpus: int
    batch: int
    seconds: float
    source: str
    precision: str = 'fp32'
    memory: Optional[float] = None
    change: Callable[[Config], None] = lambda cfg: None
    fits: bool = False


COCO, IMAGENET = 118_287, 1_281_167
ZOO = 'MMDetection, docs/en/model_zoo.md, comparison with Detectron2'
DEIT = 'DeiT paper (arXiv 2012.12877), training time'
CAFFE = 'r50-caffe_fpn_ms'


def zoo(name: str, config: str, seconds: float, memory: float, fits: bool = False) -> Recipe:
    return Recipe(name, MMDET / config, 8, 2, seconds, ZOO, memory=memory, fits=fits)


def base_swin(cfg: Config) -> None:
    cfg.model.backbone.arch = dict(
        embed_dims=(128, 256, 512, 1024), depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)
    )
    cfg.model.head.in_channels = 1024


RECIPES = (
    zoo('Mask R-CNN', f'mask_rcnn/mask-rcnn_{CAFFE}-poly-1x_coco.py', 0.265, 3.9, fits=True),
    zoo('Faster R-CNN', f'faster_rcnn/faster-rcnn_{CAFFE}-1x_coco.py', 0.216, 3.8),
    zoo('RetinaNet', f'retinanet/retinanet_{CAFFE}-1x_coco.py', 0.205, 3.4),
    Recipe(
        'SMCA, ResNet-50', ROOT / 'configs/smca/smca_r50_8xb2-50e_coco.py', 8, 2,
        30 * 60 / (COCO / 16), 'SMCA-DETR, README: 30 minutes an epoch',
    ),
    Recipe(
        'DETR, ResNet-50', MMDET / 'detr/detr_r50_8xb2-500e_coco.py', 32, 2,
        85 * 3600 / (500 * COCO / 64), 'DETR, issue 283: 85 h for 500 epochs, evaluation included',
    ),
    Recipe(
        'DeiT-B', ROOT / 'configs/vit/deit-b_8xb128_in1k.py', 8, 128,
        53 * 3600 / (300 * IMAGENET / 1024), f'{DEIT}: 53 h', 'fp16', fits=True,
    ),
    Recipe(
        'DeiT-B', ROOT / 'configs/vit/deit-b_8xb128_in1k.py', 16, 64,
        37 * 3600 / (300 * IMAGENET / 1024), f'{DEIT}: 37 h', 'fp16',
    ),
    Recipe(
        'Swin-B', ROOT / 'configs/swin/swin-s_8xb128_in1k.py', 16, 64,
        12 * 60 / (IMAGENET / 1024), 'Swin-Transformer, issue 68: 12 minutes an epoch', 'fp16',
        change=base_swin,
    ),
)  # fmt: skip


def published() -> None:
    print('| training on V100 | precision | published s | estimated s | ratio | published GiB '
          '| estimated GiB | source |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |'
    )  # fmt: skip
    for recipe in RECIPES:
        cfg = load_config(str(recipe.config))
        recipe.change(cfg)
        found = estimate_training(
            cfg, DEVICES['v100'], recipe.gpus, batch=recipe.batch, precision=recipe.precision
        )
        # Torch's allocated memory includes neither libraries nor fragmentation.
        memory = sum(v for k, v in found.memory.items() if k != 'libraries and gaps') / 2**30
        name = f'{recipe.name}, {recipe.gpus} x {recipe.batch}' + ', fitted' * recipe.fits
        print(
            f'| {name} | {recipe.precision} | {recipe.seconds:.3f} | {found.step:.3f} '
            f'| {found.step / recipe.seconds:.2f} | {recipe.memory or ""} | {memory:.1f} '
            f'| {recipe.source} |',
            flush=True,
        )
    print()
    print('| estimated, bf16 | GPUs | images a GPU | ms a step | limited by | hours | GPU hours '
          '| memory GiB |\n| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |')  # fmt: skip
    for config, batches in AHEAD.items():
        cfg = load_config(str(ROOT / 'configs' / config))
        for gpus, batch in batches.items():
            found = estimate_training(cfg, DEVICES['h100'], gpus, batch=batch, precision='bf16')
            print(
                f'| `{config}` | {gpus} x H100 | {batch} | {1e3 * found.step:.0f} | {found.limit} '
                f'| {found.hours:.1f} | {found.hours * gpus:.0f} '
                f'| {sum(found.memory.values()) / 2**30:.1f} |',
                flush=True,
            )


# Images per GPU by the number of GPUs.
AHEAD: Dict[str, Dict[int, int]] = {
    'vit/deit-b_8xb128_in1k.py': {8: 128, 64: 16},
    'swin/swin-t_8xb128_in1k.py': {8: 128, 64: 16},
    'ravlt/ravlt-t_8xb128_in1k.py': {8: 128, 64: 16},
    'ravlt/ravlt-l_8xb128_in1k.py': {8: 128, 64: 16},
    'ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py': {8: 2, 64: 2},
    'ravlt/cascade-mask-rcnn_ravlt-l_fpn_ms-3x_coco.py': {8: 2, 64: 2},
    'smca/smca_r50_8xb2-50e_coco.py': {8: 2, 64: 2},
    'ravlt/upernet_ravlt-b_8xb2-160k_ade20k-512x512.py': {8: 2, 64: 2},
}


# --- Activation checkpointing --------------------------------------------------------------------

CASCADE = 'ravlt/cascade-mask-rcnn_ravlt-{}_fpn_ms-3x_coco.py'
HEADS = ('ConvFCBBoxHead', 'FCNMaskHead')


@dataclass(frozen=True)
class Choice:
    """A training with alternatives for activation checkpointing.

    Args:
        config: config of this project.
        shard: module classes that FSDP2 gathers.
        checkpointing: alternative sets of module classes to recompute.
    """

    config: str
    shard: Tuple[str, ...]
    checkpointing: Tuple[Tuple[str, ...], ...]


CHOICES = (
    Choice(
        CASCADE.format('l'), ('RAVLTBlock', *HEADS), ((), ('RAVLTBlock',), ('RAVLTBlock', *HEADS))
    ),
    Choice('ravlt/retinanet_ravlt-s_fpn_1x_coco.py', ('RAVLTBlock',), ((), ('RAVLTBlock',))),
    Choice(
        'smca/smca_r50_8xb2-50e_coco.py', ('Bottleneck', 'SMCAEncoderLayer'),
        ((), ('Bottleneck', 'SMCAEncoderLayer')),
    ),
)  # fmt: skip
# A 1333x800 image padded to a multiple of 32, two on each of eight GPUs.
LARGE, EIGHT, TWO = (800, 1344), 8, 2
GiB, MiB = 2**30, 2**20


def choices() -> None:
    print('| config | precision | computed again | activations GiB | backward pass GiB '
          '| together GiB: DDP | FSDP2 | TFLOP | ms a step: DDP | FSDP2 |\n'
          '| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')  # fmt: skip
    for choice in CHOICES:
        cfg = load_config(str(ROOT / 'configs' / choice.config))
        for precision in ('fp32', 'bf16'):
            for classes in choice.checkpointing:
                ddp, fsdp2 = (
                    estimate_training(
                        cfg, DEVICES['h100'], EIGHT, batch=TWO, precision=precision, shape=LARGE,
                        shard=shard, checkpointing=classes,
                    )
                    for shard in (None, choice.shard)
                )  # fmt: skip
                names = ', '.join(f'`{name}`' for name in classes) or 'nothing'
                totals = (sum(found.memory.values()) / GiB for found in (ddp, fsdp2))
                print(
                    f'| `{Path(choice.config).stem}` | {precision} | {names} '
                    f'| {ddp.memory["activations"] / GiB:.2f} '
                    f'| {ddp.memory["backward pass"] / GiB:.2f} '
                    f'| {" | ".join(f"{total:.1f}" for total in totals)} '
                    f'| {2e-12 * ddp.products:.2f} | {1e3 * ddp.step:.0f} '
                    f'| {1e3 * fsdp2.step:.0f} |',
                    flush=True,
                )


# Small enough for this machine: config, images, size.
MEASURED = (
    ('ravlt/retinanet_ravlt-nano_bccd.py', 2, (256, 320)),
    (CASCADE.format('s'), 1, (256, 320)),
)


def most_allocated(step: Callable[[], object]) -> int:
    """Return the peak bytes that torch's allocator gave out."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == '[memory]']
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def step_of_detector(cfg: Config, batch: int, shape: Tuple[int, int]) -> int:
    """Return the peak bytes of a real step with its loss; each gradient is dropped at once."""
    torch.manual_seed(0)
    for stage in (cfg.model.get('train_cfg') or {}).get('rcnn', ()):
        # Use as many masks as the sampler allows: random boxes have little overlap.
        stage.assigner.update(pos_iou_thr=0.02, neg_iou_thr=0.02, min_pos_iou=0.02)
    with DefaultScope.overwrite_default_scope(cfg.default_scope), quiet():
        model = MODELS.build(cfg.model).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))
    inputs = demo_mm_inputs(batch, [(3, *shape)] * batch, num_classes=2, with_mask=True)
    data = model.data_preprocessor(inputs, True)

    def step() -> None:
        model.parse_losses(model(**data, mode='loss'))[0].backward()

    step()
    return most_allocated(step)


def choices_here() -> None:
    print('| config | images | computed again | measured MiB | estimated MiB | ratio |\n'
          '| --- | ---: | --- | ---: | ---: | ---: |')  # fmt: skip
    for config, batch, shape in MEASURED:
        for again in (False, True):
            cfg = load_config(str(ROOT / 'configs' / config))
            cfg.model.backbone.with_cp = again
            estimated = training_step(build_model(cfg), shape, batch).peak / MiB
            measured = step_of_detector(cfg, batch, shape) / MiB
            print(
                f'| `{Path(config).stem}` | {batch} x {shape[1]}x{shape[0]} '
                f'| {"`RAVLTBlock`" if again else "nothing"} | {measured:.0f} | {estimated:.0f} '
                f'| {estimated / measured:.2f} |',
                flush=True,
            )


# --- Here --------------------------------------------------------------------------------------

# Config, images per process, size.
CASES = (
    ('vit/deit-t_8xb128_in1k.py', 8, (224, 224)),
    ('vit/deit-s_8xb128_in1k.py', 4, (224, 224)),
    ('ravlt/ravlt-t_8xb128_in1k.py', 4, (224, 224)),
    ('quickstart/ravlt-nano_shapes.py', 16, (64, 64)),
)
FITTED = CASES[0][0]
ROUNDS = 3


def least(call: Callable[[], object], rounds: int = 10) -> float:
    """Return the seconds of the slowest process in the fastest round; all start together."""
    times = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        call()
        spent = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        times.append(float(spent))
    return min(times)


# Products of the shapes in these models; the fastest is the peak.
SHAPES = ((1024, 1024, 1024), (1568, 192, 768), (1568, 384, 1536))


def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    for _ in range(4):
        torch.mm(left, right, out=out)


def peaks(processes: int) -> Device:
    """Measure the peaks of one process while all processes run the same."""
    source, target = torch.zeros(2, 2**25)  # 128 MiB: larger than any cache
    gradients = torch.zeros(2**23)
    flops = max(
        2 * m * k * n * 4
        / least(partial(multiply, torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)))
        for m, k, n in SHAPES
    )  # fmt: skip
    bandwidth = 2 * source.nbytes / least(lambda: target.copy_(source))
    link = 1.0
    if processes > 1:
        travelled = 2 * (processes - 1) / processes * gradients.nbytes
        link = travelled / least(lambda: dist.all_reduce(gradients))
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return Device(dict(fp32=flops), bandwidth, memory, link, None, 'measured', False, processes)


class Training(nn.Module):
    """Module whose forward pass returns the loss of a classifier, for DistributedDataParallel."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        with DefaultScope.overwrite_default_scope(cfg.default_scope), quiet():
            self.model = MODELS.build(cfg.model)

    def forward(self, images: torch.Tensor, samples: list) -> torch.Tensor:
        return sum(self.model(images, samples, mode='loss').values())


def measured(cfg: Config, batch: int, shape: Tuple[int, int]) -> float:
    """Return the seconds of a step: forward, backward, exchange, update."""
    torch.manual_seed(0)
    training = Training(cfg)
    wrapped = DistributedDataParallel(training) if dist.get_world_size() > 1 else training
    optimizer = torch.optim.AdamW(training.parameters(), 1e-4)
    images = torch.randn(batch, 3, *shape)
    samples = [DataSample().set_gt_label(0) for _ in images]
    for sample in samples:  # as mixup and cutmix set them
        sample.set_gt_score(torch.eye(training.model.head.num_classes)[0])

    def step() -> None:
        optimizer.zero_grad()
        wrapped(images, samples).backward()
        optimizer.step()

    step()
    return least(step, ROUNDS)


def work(rank: int, processes: int, port: int, out: str) -> None:
    """Run one process; the first writes the results."""
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=processes)
    seconds, seen = [], [peaks(processes)]
    for config, batch, shape in CASES:
        seconds.append(measured(load_config(str(ROOT / 'configs' / config)), batch, shape))
        seen.append(peaks(processes))
    device = replace(
        seen[0],
        flops=dict(fp32=max(one.flops['fp32'] for one in seen)),
        bandwidth=max(one.bandwidth for one in seen),
        link=max(one.link for one in seen),
    )
    if rank == 0:
        torch.save([vars(device), *seconds], out)
    dist.destroy_process_group()


def estimate_case(
    case: Sequence, device: Device, processes: int, efficiency: Efficiency
) -> TrainingEstimate:
    config, batch, shape = case
    cfg = load_config(str(ROOT / 'configs' / config))
    return estimate_training(
        cfg, device, processes, machines=1, batch=batch, precision='fp32', shape=shape,
        images=1, efficiency=efficiency,
    )  # fmt: skip


def fit(seconds: float, device: Device) -> Efficiency:
    """Find the share for products and bytes that reproduces the step of FITTED on one process."""
    low, high = 0.05, 1.0
    for _ in range(20):
        share = (low + high) / 2
        efficiency = Efficiency(compute=share, bandwidth=share, link=1, launch=0)
        if estimate_case(CASES[0], device, 1, efficiency).step > seconds:
            low = share
        else:
            high = share
    return efficiency


def here(numbers: List[int], folder: Path) -> None:
    print(f'{machine(torch.device("cpu"))}, torch {torch.__version__}, commit {commit()}\n')
    found = {}
    for processes in numbers:
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        out = folder / f'scale-{processes}.pt'
        torch.multiprocessing.spawn(work, (processes, port, str(out)), processes)
        device, *seconds = torch.load(out)
        found[processes] = Device(**device), seconds
        out.unlink()
    efficiency = fit(found[1][1][0], found[1][0])
    print('| processes | GFLOP/s each | copy GB/s each | exchange GB/s |\n'
          '| ---: | ---: | ---: | ---: |')  # fmt: skip
    for processes, (device, _) in found.items():
        link = f'{device.link / 1e9:.2f}' if processes > 1 else ''
        flops, bandwidth = device.flops['fp32'] / 1e9, device.bandwidth / 1e9
        print(f'| {processes} | {flops:.0f} | {bandwidth:.1f} | {link} |')
    print(f'\nShare of both peaks, fitted to {FITTED} on one process: {efficiency.compute:.2f}\n')
    print('| config | images a process | processes | measured ms | estimated ms | ratio '
          '| exchange |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |')  # fmt: skip
    for i, case in enumerate(CASES):
        for processes, (device, seconds) in found.items():
            guess = estimate_case(case, device, processes, efficiency)
            print(
                f'| `{case[0]}` | {case[1]} | {processes} | {1e3 * seconds[i]:.0f} '
                f'| {1e3 * guess.step:.0f} | {guess.step / seconds[i]:.2f} '
                f'| {1e3 * guess.exchange:.0f} |'
            )


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--published', action='store_true')
    parser.add_argument('--checkpointing', action='store_true')
    parser.add_argument('--here', nargs='+', type=int, metavar='PROCESSES')
    args = parser.parse_args(argv)
    if args.here and (1 not in args.here or min(args.here) < 1):
        parser.error(f'--here needs 1, which the rest is compared with, got {args.here}')
    if args.published:
        published()
    if args.checkpointing:
        choices()
        print()
        choices_here()
    if args.here:
        with tempfile.TemporaryDirectory() as folder:
            here(args.here, Path(folder))


if __name__ == '__main__':
    main(sys.argv[1:])

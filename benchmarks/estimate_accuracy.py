"""Compare estimates of mmlinattn.analysis.training_estimate with measurements (docs/estimates.md).

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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, List, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmpretrain.structures import DataSample
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import tables
from benchmarks.machine import commit, machine
from benchmarks.measure import peak_memory
from mmlinattn.analysis.devices import Device
from mmlinattn.analysis.operators import training_step
from mmlinattn.analysis.training_estimate import Efficiency, TrainingEstimate, estimate_training
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import quiet

ROOT = Path(__file__).resolve().parents[1]


# --- Activations ---------------------------------------------------------------------------------

MiB = 2**20
# Small enough for this machine: config, images, size.
MEASURED = (
    ('ravlt/retinanet_ravlt-nano_bccd.py', 2, (256, 320)),
    ('ravlt/cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco.py', 1, (256, 320)),
)


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
    return peak_memory(step, torch.device('cpu'))


def activations() -> None:
    columns = ('config', 'images', 'computed again', 'measured MiB', 'estimated MiB', 'ratio')
    lines = []
    for config, batch, shape in MEASURED:
        for again in (False, True):
            cfg = load_config(str(ROOT / 'configs' / config))
            cfg.model.backbone.with_cp = again
            estimated = training_step(build_model(cfg), shape, batch).peak / MiB
            measured = step_of_detector(cfg, batch, shape) / MiB
            name, images = f'`{Path(config).stem}`', f'{batch} x {shape[1]}x{shape[0]}'
            numbers = f'{measured:.0f}', f'{estimated:.0f}', f'{estimated / measured:.2f}'
            lines.append([name, images, '`RAVLTBlock`' if again else 'nothing', *numbers])
    print(*tables.markdown(columns, lines), sep='\n')


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
    lines = []
    for processes, (device, _) in found.items():
        link = f'{device.link / 1e9:.2f}' if processes > 1 else ''
        flops, bandwidth = device.flops['fp32'] / 1e9, device.bandwidth / 1e9
        lines.append([f'{processes}', f'{flops:.0f}', f'{bandwidth:.1f}', link])
    columns = ('processes', 'GFLOP/s each', 'copy GB/s each', 'exchange GB/s')
    print(*tables.markdown(columns, lines), sep='\n')
    print(f'\nShare of both peaks, fitted to {FITTED} on one process: {efficiency.compute:.2f}\n')
    columns = ('config', 'images a process', 'processes', 'measured ms', 'estimated ms', 'ratio')
    lines = []
    for i, case in enumerate(CASES):
        for processes, (device, seconds) in found.items():
            guess = estimate_case(case, device, processes, efficiency)
            measured = f'{1e3 * seconds[i]:.0f}', f'{1e3 * guess.step:.0f}'
            ratio, exchange = f'{guess.step / seconds[i]:.2f}', f'{1e3 * guess.exchange:.0f}'
            lines.append([f'`{case[0]}`', f'{case[1]}', f'{processes}', *measured, ratio, exchange])
    print(*tables.markdown([*columns, 'exchange'], lines), sep='\n')


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--checkpointing', action='store_true')
    parser.add_argument('--here', nargs='+', type=int, metavar='PROCESSES')
    args = parser.parse_args(argv)
    if args.here and (1 not in args.here or min(args.here) < 1):
        parser.error(f'--here needs 1, which the rest is compared with, got {args.here}')
    if args.checkpointing:
        activations()
    if args.here:
        with tempfile.TemporaryDirectory() as folder:
            here(args.here, Path(folder))


if __name__ == '__main__':
    main(sys.argv[1:])

"""Estimate time and memory of a training on other machines."""

import argparse
from dataclasses import replace

from rich.table import Table

from ..analysis.devices import DEVICES, GB
from ..analysis.training_estimate import Efficiency, TrainingEstimate, estimate_training
from ..analysis.training_memory import gathered_parameters, training_memory
from ..engine import build_model
from ..engine.config import load_config
from ..utils.command_line import errors_in_one_line, plain_console
from .arguments.analysis import EFFICIENCY

MiB, GiB = 2**20, 2**30


def table(found: TrainingEstimate, title: str) -> Table:
    out = Table(title=title, show_header=False)
    out.add_column()
    out.add_column(justify='right')
    for name in ('compute', 'bandwidth', 'launch', 'update'):
        label = {'compute': 'products', 'bandwidth': 'operators bound by memory',
                 'launch': 'launches', 'update': 'optimizer'}[name]  # fmt: skip
        out.add_row(label, f'{1e3 * getattr(found, name):.1f} ms')
    hidden = found.exchange - found.exposed
    out.add_row('exchange, hidden', f'{1e3 * hidden:.1f} ms')
    out.add_row('exchange, exposed', f'{1e3 * found.exposed:.1f} ms', end_section=True)
    out.add_row('a step', f'{1e3 * found.step:.1f} ms', style='bold')
    out.add_row('products of a GPU', f'{2e-12 * found.products:.2f} TFLOP')
    out.add_row('images a second', f'{found.images / found.step:.0f}')
    if found.hours:
        out.add_row('steps', f'{found.steps}')
        out.add_row('all of them', f'{found.hours:.1f} h', style='bold')
        out.add_row('GPU hours', f'{found.hours * found.processes:.0f}')
    else:
        out.add_row('steps', 'unknown: --images')
    out.add_section()
    for name, size in found.memory.items():
        out.add_row(name, f'{size / GiB:.2f} GiB')
    needed, there = sum(found.memory.values()) / GiB, found.capacity / GiB
    verdict = 'fits' if found.fits else 'does not fit'
    out.add_row(f'memory of {there:.1f} GiB: {verdict}', f'{needed:.2f} GiB', style='bold',
                end_section=True)  # fmt: skip
    out.add_row('limited by', found.limit)
    return out


def print_memory(args: argparse.Namespace) -> None:
    """Print the memory of each process (``--processes``), by number of processes."""
    cfg = load_config(args.config, args.cfg_options)
    found = training_memory(cfg, args.processes)
    gathered = gathered_parameters(build_model(cfg), args.shard) if args.shard else {}
    out = Table(caption='MiB in the first process, without activations')
    for name in ('processes', *next(iter(found.values())), 'together'):
        out.add_column(name, justify='right')
    for number, parts in found.items():
        sizes = [*parts.values(), sum(parts.values())]
        out.add_row(str(number), *(f'{size / MiB:.3f}' for size in sizes))
    plain_console().print(out)
    for name, size in gathered.items():
        print(f'gathered, float32, {name}: {size / MiB:.3f} MiB')


def print_estimate(args: argparse.Namespace) -> None:
    """Print time and memory of the training."""
    cfg = load_config(args.config, args.cfg_options)
    strategy = cfg.get('strategy') or {}
    own = 'fsdp2' if strategy.get('type') == 'FSDP2Strategy' else 'ddp'
    shard = None
    if (args.strategy or own) == 'fsdp2':
        shard = args.shard or strategy.get('shard')
        if not shard:
            raise ValueError('--strategy fsdp2 needs --shard CLASS ...')
    checkpointing = args.checkpointing
    if checkpointing is None:
        checkpointing = strategy.get('checkpointing', ())
    device = DEVICES[args.gpu]
    if args.network is not None:
        device = replace(device, network=args.network * GB)
    shares = {name: getattr(args, name) for name in EFFICIENCY}
    found = estimate_training(
        cfg, device, args.gpus, machines=args.nodes, batch=args.batch, precision=args.precision,
        shape=args.shape, images=args.images, shard=shard, checkpointing=checkpointing,
        efficiency=Efficiency(**{k: v for k, v in shares.items() if v is not None}),
    )  # fmt: skip
    console = plain_console()
    console.print(table(found, f'{args.gpus} x {args.gpu}, {found.images} images a step'))
    console.print(f'Peaks: {device.source}. Estimated, not measured: docs/estimates.md.')
    if found.assumed:
        console.print(f'Assumed: {found.assumed}; --images says otherwise.')
    if found.uncounted:
        console.print(f'Not counted, may hold products: {", ".join(found.uncounted)}', style='red')


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug):
        (print_memory if args.processes else print_estimate)(args)
    return 0

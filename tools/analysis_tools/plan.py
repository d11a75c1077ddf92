#!/usr/bin/env python
"""Estimate time and memory of a training on other machines: docs/scale.md."""

import argparse
from dataclasses import fields, replace

from rich.table import Table

from mmlinattn.analysis.devices import DEVICES, GB
from mmlinattn.analysis.training_estimate import Efficiency, Plan, plan
from mmlinattn.engine.config import load_config
from mmlinattn.utils.command_line import Parser, errors_in_one_line, plain_console

GiB = 2**30


def parse_args() -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    add = parser.add_argument
    add('config', help='config file, of any of the three frameworks')
    add('--gpus', type=int, default=8, metavar='N', help='in all machines (8)')
    add('--gpu', choices=DEVICES, default='h100')
    add('--nodes', type=int, metavar='N', help='machines; default: of eight GPUs each')
    add('--batch', type=int, metavar='N', help="images a GPU; default: the config's")
    add('--precision', help='fp32, tf32, bf16 or fp16; default: fp32, or mixed as in the config')
    add('--strategy', choices=('ddp', 'fsdp2'), help="default: the config's")
    add('--shard', nargs='+', metavar='CLASS', help="of fsdp2; default: the config's")
    add(
        '--checkpointing',
        nargs='*',
        metavar='CLASS',
        help="computed again in the backward pass; default: those of the config's strategy",
    )
    add('--shape', nargs=2, type=int, metavar=('H', 'W'), help='default: from the pipeline')
    add(
        '--images',
        type=int,
        metavar='N',
        help='of an epoch; default: known for COCO, ImageNet, CIFAR',
    )
    add('--network', type=float, metavar='GB/S', help='of a GPU between machines, one direction')
    for field in fields(Efficiency):
        what = 'seconds' if field.name == 'launch' else 'share of the peak'
        add(f'--{field.name}', type=float, default=field.default, metavar='X',
            help=f'{what} ({field.default:g}), see docs/scale.md')  # fmt: skip
    return parser.parse_args()


def table(found: Plan, title: str) -> Table:
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
    if found.steps:
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


def main() -> None:
    args = parse_args()
    with errors_in_one_line(args.debug):
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
        found = plan(
            cfg, device, args.gpus, machines=args.nodes, batch=args.batch,
            precision=args.precision, shape=args.shape, images=args.images, shard=shard,
            checkpointing=checkpointing,
            efficiency=Efficiency(**{f.name: getattr(args, f.name) for f in fields(Efficiency)}),
        )  # fmt: skip
    console = plain_console()
    console.print(table(found, f'{args.gpus} x {args.gpu}, {found.images} images a step'))
    console.print(f'Peaks: {device.source}. Estimated, not measured: docs/scale.md.')
    if found.assumed:
        console.print(f'Assumed: {found.assumed}; --images says otherwise.')
    if found.uncounted:
        console.print(f'Not counted, may hold products: {", ".join(found.uncounted)}', style='red')


if __name__ == '__main__':
    main()

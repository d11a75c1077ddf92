"""Measure the images a second of the model of a config."""

import argparse
import os
import sys
from pathlib import Path
from typing import List, Sequence, Tuple

import torch
from rich.table import Table
from torch import nn

from ..analysis.complexity import Forward, check_shape
from ..analysis.throughput import Throughput, throughput
from ..engine.config import load_image_config
from ..engine.model import check_device, initial_model
from ..utils import check_writable, write_json
from ..utils.command_line import error_text, plain_console


def machine(args: argparse.Namespace) -> str:
    """Return device, threads and precision in words."""
    device = torch.device(args.device)
    precision = 'float32' if args.precision == 'fp32' else f'autocast to {args.precision}'
    name = f'{device}, threads: {torch.get_num_threads()}'
    if device.type == 'cuda':
        name = torch.cuda.get_device_name(device)
        if args.precision == 'fp32' and torch.backends.cudnn.allow_tf32:
            precision += ', convolutions in TF32'
    return f'{name}, {precision}, torch {torch.__version__}'


def table(found: Sequence[Throughput], title: str, machine: str) -> Table:
    out = Table(title=title, caption=machine)
    for name in ('batch', 'images a second', 'quartiles', 'ms an image', 'calls'):
        out.add_column(name, justify='right')
    for row in found:
        speed, low, high = (row.images_a_second(quantile) for quantile in (0.5, 0.25, 0.75))
        cells = (f'{speed:.1f}', f'{low:.1f} to {high:.1f}', f'{1e3 / speed:.2f}')
        out.add_row(str(row.batch), *cells, str(len(row.seconds)))
    return out


def measure(args: argparse.Namespace, model: nn.Module, shape: Tuple[int, int]) -> List[Throughput]:
    """Measure each batch size; print those that fail to stderr."""
    found: List[Throughput] = []
    options = dict(precision=args.precision, limit=args.limit)
    for batch in args.batch_size:
        try:
            found.append(throughput(model, batch, shape, torch.device(args.device), **options))
        except (TimeoutError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and 'memory' not in str(error):  # of CPU or GPU
                raise
            print(f'error: {type(error).__name__}: {error_text(error)}', file=sys.stderr)
    return found


def main(args: argparse.Namespace) -> int:
    if args.threads:
        processors = os.cpu_count() or 1
        if args.threads > 4 * processors:  # thousands would not end, and not be ended
            raise ValueError(
                f'--threads must be at most {4 * processors}, four for each of {processors} '
                f'processors, got {args.threads}'
            )
        torch.set_num_threads(args.threads)
    cfg, args.device = load_image_config(args.config, args.cfg_options), check_device(args.device)
    shape = check_shape(args.shape)
    if args.json:
        check_writable(args.json)
    model = initial_model(cfg, device=args.device)
    part = getattr(model, 'backbone', model) if args.backbone else model
    found = measure(args, Forward(part), shape)
    height, width = shape
    where = machine(args)
    record = dict(
        config=args.config, cfg_options=args.cfg_options, model=type(part).__name__, shape=shape,
        machine=where, results=[row.to_dict() for row in found],
    )  # fmt: skip
    if args.json:
        write_json(args.json, record)
    if found:
        title = f'{Path(args.config).stem}, {type(part).__name__}, {height} x {width}'
        plain_console().print(table(found, title, where))
    return int(len(found) < len(args.batch_size))

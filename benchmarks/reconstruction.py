"""Time and memory of ViT-VQGAN against the size of the image, with four attentions.

    python -m benchmarks.reconstruction --out work_dirs/reconstruction.json
    python -m benchmarks.reconstruction --embed-dims 512 --heads 8 --depth 8     # the SS size

A training step is forward and backward pass of the generator without perceptual and adversarial
loss, whose networks see the same images whatever the attention. Time is processor time of one
thread, so that other work on the machine matters little; on a GPU it is the time of the device.
"""

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

import torch
from mmengine.registry import MODELS

import mmlinattn  # noqa: F401  registers everything
from benchmarks.machine import commit, machine
from benchmarks.measure import interleave, peak_memory, slope
from mmlinattn.models.generation import ViTVQGAN
from mmlinattn.models.layers import optimize_for_cpu

ATTENTIONS = {
    'softmax': dict(type='SoftmaxAttention'),
    'Slinear': dict(type='SlinearAttention'),
    'Nystrom': dict(type='NystromAttention'),
    'RWGKA': dict(type='RWGKA'),
}
QUADRATIC = ('softmax',)
MODES = ('forward', 'training')


def build(attention: str, side: int, args: argparse.Namespace) -> ViTVQGAN:
    """Return a model for images of this side, in eval mode."""
    arch = dict(
        embed_dims=args.embed_dims, num_heads=args.heads, depth=args.depth, patch_size=args.patch
    )
    vit = dict(
        type='ViT', arch=arch, img_size=side, attn_cfg=ATTENTIONS[attention], with_cls_token=False
    )
    quantizer = dict(num_codes=args.codes, code_dims=32)
    model = MODELS.build(dict(type='ViTVQGAN', backbone=vit, quantizer=quantizer))
    return optimize_for_cpu(model.to(args.device)).eval()


def step(model: ViTVQGAN, image: torch.Tensor, mode: str) -> Callable[[], object]:
    """Return the call to measure."""

    def forward() -> object:
        with torch.no_grad():
            return model(image)

    def training() -> object:
        losses = model(image, mode='loss')
        losses.pop('perplexity')
        return torch.autograd.grad(sum(losses.values()), [*model.parameters()])

    return forward if mode == 'forward' else training


def seconds(call: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Return the median time of a call, after one that is not timed."""
    call()
    times = interleave({'call': call}, device, rounds, 0.0, processor_time=True)
    return statistics.median(times['call'])


def measure(args: argparse.Namespace) -> List[dict]:
    """Return one record per mode, attention and size; quadratic ones up to ``--quadratic-to``."""
    records = []
    for mode in args.modes:
        for attention in ATTENTIONS:
            for side in args.sizes:
                if attention in QUADRATIC and side > args.quadratic_to:
                    continue
                torch.manual_seed(0)
                image = torch.rand(1, 3, side, side, device=args.device)
                call = step(build(attention, side, args), image, mode)
                record = dict(mode=mode, attention=attention, side=side)
                record['seconds'] = seconds(call, args.device, args.rounds)
                record['mib'] = peak_memory(call, args.device) / 2**20
                records.append(record)
                print(json.dumps(record), flush=True)
    return records


def table(records: List[dict], mode: str, patch: int) -> str:
    """Return times and memory of a mode as a table in Markdown."""
    sides = sorted({record['side'] for record in records})
    found: Dict[str, Dict[int, dict]] = {}
    for record in records:
        if record['mode'] == mode:
            found.setdefault(record['attention'], {})[record['side']] = record
    head = ' | '.join(f'{side} ({(side // patch) ** 2:,})' for side in sides)
    lines = [f'| {mode}, image (tokens) | {head} | slope of time | slope of memory |']
    lines.append('| --- |' + ' ---: |' * (len(sides) + 2))
    for attention, by_side in found.items():
        cells = [_cell(by_side.get(side)) for side in sides]
        measured = sorted(by_side)[-3:]
        tokens = [(side // patch) ** 2 for side in measured]
        for name in ('seconds', 'mib'):
            values = [by_side[side][name] for side in measured]
            cells.append(f'{slope(tokens, values):.2f}' if len(measured) > 1 else '')
        lines.append(f'| {attention} | {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def _cell(record: Optional[dict]) -> str:
    return f'{record["seconds"]:.3g} s, {record["mib"]:.0f} MiB' if record else 'not run'


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--sizes', type=int, nargs='+', default=[256, 512, 1024, 2048], help='sides in pixels')
    add('--modes', nargs='+', choices=MODES, default=[*MODES])
    add('--quadratic-to', type=int, default=1024, help='largest image of softmax attention')
    add('--embed-dims', type=int, default=64)
    add('--heads', type=int, default=2)
    add('--depth', type=int, default=2, help='blocks of the encoder, and of the decoder')
    add('--patch', type=int, default=8)
    add('--codes', type=int, default=1024)
    add('--rounds', type=int, default=3)
    add('--device', type=torch.device, default=torch.device('cpu'))
    add('--out', type=Path, help='also write the records there, as JSON')
    args = parser.parse_args(argv)
    for side in args.sizes:
        if side < 1 or side % args.patch:
            parser.error(f'--sizes must be multiples of --patch {args.patch}, got {side}')
    torch.set_num_threads(1)
    records = measure(args)
    facts = dict(
        machine=machine(args.device), python=platform.python_version(), torch=torch.__version__,
        commit=commit(), command=' '.join(sys.argv),
    )  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(dict(facts, records=records), indent=1) + '\n')
    print(json.dumps(facts))
    for mode in args.modes:
        print(table(records, mode, args.patch))
    return 0


if __name__ == '__main__':
    sys.exit(main())

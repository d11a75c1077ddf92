"""Time and memory of packed images of different sizes, against padding and one by one.

    python benchmarks/packed.py
    python benchmarks/packed.py --train --attn RALA SoftmaxAttention --batch 16

Prints a Markdown table. A case is a batch with the sizes of a distribution:

- ``bccd``: 640x480, as all images of BCCD;
- ``bccd-scales``: the same with the shorter side drawn from 480, 512, ..., 800, as DETR trains;
- ``coco``: frequent sizes of COCO by their approximate shares, shorter side 800, longer at most
  1333.

``vit`` is a ViT with patches of 16 and the widths of DeiT-T on images, padded with zeros.
``encoder`` is the encoder of SMCA on maps with a stride of 32, padded with a mask. Outputs of
packed and single images are compared before any timing.
"""

import argparse
import bisect
import itertools
import statistics
import sys
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import commit, machine
from benchmarks.measure import difference, interleave, peak_memory
from benchmarks.run import positive
from mmlinattn.models.backbones import ViT
from mmlinattn.models.detectors.smca_encoder import SMCAEncoder
from mmlinattn.models.layers import optimize_for_cpu
from mmlinattn.ops import PackedShapes

Size = Tuple[int, int]
SCALES = range(480, 801, 32)
# (height, width) and share. The other images of COCO have hundreds of sizes in between.
COCO = {
    (480, 640): 30, (427, 640): 25, (640, 480): 12, (640, 427): 7, (426, 640): 8, (500, 375): 2,
    (375, 500): 4, (360, 640): 4, (640, 640): 3, (640, 360): 2, (333, 500): 3,
}  # fmt: skip
WAYS = ('packed', 'padded', 'one by one')
Call = Callable[[], Sequence[Tensor]]


def resized(size: Size, short: int, longest: int = 1333) -> Size:
    """Return (height, width) with the shorter side ``short``, the longer at most ``longest``.

    Example:
        >>> resized((480, 640), 800), resized((360, 640), 800)
        ((800, 1067), (750, 1333))
    """
    scale = min(short / min(size), longest / max(size))
    return round(size[0] * scale), round(size[1] * scale)


def draw(distribution: str, count: int) -> List[Size]:
    """Return the (height, width) of a batch, which has each size by its share.

    Example:
        >>> draw('coco', 4)
        [(800, 1067), (800, 1199), (1067, 800), (800, 1067)]
    """
    if distribution == 'bccd':
        return [(480, 640)] * count
    sizes = COCO if distribution == 'coco' else {resized((480, 640), s): 1 for s in SCALES}
    ends = list(itertools.accumulate(sizes.values()))
    places = [bisect.bisect(ends, (i + 0.5) / count * ends[-1]) for i in range(count)]
    drawn = [[*sizes][place] for place in places]
    return [resized(size, 800) for size in drawn] if distribution == 'coco' else drawn


def vit(attn: str, depth: int, sizes: Sequence[Size], device: torch.device):
    """Return the model and its calls on images."""
    arch = dict(embed_dims=192, num_heads=3, depth=depth)
    model = ViT(arch, attn, with_cls_token=False, img_size=(480, 640))
    model = optimize_for_cpu(model.eval().to(device))
    images = [torch.randn(3, *size, device=device) for size in sizes]
    height, width = (max(size[i] for size in sizes) for i in range(2))
    batch = torch.stack([F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in images])
    return model, {
        'packed': lambda: [out.flatten() for out in model(images)[0]],
        'padded': lambda: [model(batch)[0]],
        'one by one': lambda: [model(image[None])[0].flatten() for image in images],
    }


def encoder(attn: str, depth: int, sizes: Sequence[Size], device: torch.device):
    """Return the model and its calls on maps of the backbone."""
    model = SMCAEncoder(depth, dict(attn_cfg=attn, dropout=0.0)).eval()
    model = optimize_for_cpu(model.to(device))
    shapes = [(-(-height // 32), -(-width // 32)) for height, width in sizes]
    maps = [torch.randn(*shape, 256, device=device) for shape in shapes]
    height, width = (max(shape[i] for shape in shapes) for i in range(2))
    batch = torch.zeros(len(maps), height, width, 256, device=device)
    mask = torch.ones(len(maps), height, width, dtype=torch.bool, device=device)
    for i, x in enumerate(maps):
        batch[i, : x.shape[0], : x.shape[1]] = x
        mask[i, : x.shape[0], : x.shape[1]] = False
    tokens, packed = [x.flatten(0, 1)[None] for x in maps], PackedShapes(shapes)
    together = torch.cat(tokens, 1)
    return model, {
        'packed': lambda: packed.split(model(together, packed)),
        'padded': lambda: [model(batch.flatten(1, 2), (height, width), None, mask.flatten(1))],
        'one by one': lambda: [model(x, shape) for x, shape in zip(tokens, shapes)],
    }


MODELS = dict(vit=vit, encoder=encoder)
DEPTHS = dict(vit=12, encoder=6)


def measured(
    model: nn.Module, calls: Dict[str, Call], train: bool, device: torch.device, rounds: int
) -> Dict[str, Tuple[float, int]]:
    """Return the median seconds and the peak bytes of each way."""
    packed, alone = (torch.cat([x.flatten() for x in calls[way]()]) for way in WAYS[::2])
    error = difference(packed, alone)
    if not error < 1e-5:
        raise SystemExit(f'packed outputs differ from those of single images by {error:.1e}')

    def step(call: Call) -> None:
        with torch.set_grad_enabled(train):
            outs = call()
            if train:
                torch.autograd.grad(sum(out.mean() for out in outs), [*model.parameters()])

    steps = {way: lambda call=call: step(call) for way, call in calls.items()}
    memory = {way: peak_memory(call, device) for way, call in steps.items()}  # and warm-up
    times = interleave(steps, device, rounds, 0.0, rounds)
    return {way: (statistics.median(times[way]), memory[way]) for way in WAYS}


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ('bccd', 'bccd-scales', 'coco')
    parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS])
    parser.add_argument('--sizes', nargs='+', choices=names, default=names)
    parser.add_argument('--attn', nargs='+', default=['RALA'], metavar='NAME')
    parser.add_argument('--batch', type=positive, default=8)
    parser.add_argument('--depth', type=positive, help='layers; 12 of vit, 6 of encoder')
    parser.add_argument('--train', action='store_true', help='forward and backward pass')
    parser.add_argument('--rounds', type=positive, default=5)
    parser.add_argument('--device', default='cpu')
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    print(f'{machine(device)}, {torch.get_num_threads()} threads, commit {commit()}')
    print(f'Batch of {args.batch}, {"training step" if args.train else "inference"}.\n')
    lines = [
        '| model | attention | sizes | padding | ms, packed | padded | one by one '
        '| MiB, packed | padded | one by one |',
        f'| --- | --- | --- | {" | ".join(["---:"] * 7)} |',
    ]
    for name in args.models:
        for attn in args.attn:
            for sizes in args.sizes:
                torch.manual_seed(0)
                drawn = draw(sizes, args.batch)
                area = max(h for h, _ in drawn) * max(w for _, w in drawn) * len(drawn)
                padding = 1 - sum(h * w for h, w in drawn) / area
                with torch.set_grad_enabled(args.train):
                    model, calls = MODELS[name](attn, args.depth or DEPTHS[name], drawn, device)
                    found = measured(model, calls, args.train, device, args.rounds)
                columns = zip(*(found[way] for way in WAYS))
                cells = [name, attn, sizes, f'{padding:.0%}']
                for values, unit in zip(columns, (1e3, 2**-20)):
                    first, *others = (value * unit for value in values)
                    cells += [f'{first:.3g}', *(f'{x:.3g} ({x / first:.2f}x)' for x in others)]
                lines.append(f'| {" | ".join(cells)} |')
    print('\n'.join(lines))  # at once: models log as well
    return 0


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))

"""Time and memory of space-time attention against the length of a clip.

    python -m benchmarks.clips
    python -m benchmarks.clips --slopes

Each case is one block of TimeSformer (attention of all steps and feed-forward layer), forward, or
forward and backward with ``--train``, on clips of 224 pixels, 196 patches a frame. Times are
processor seconds of one thread, the least of ``--rounds``; memory is the peak of torch's
allocations. ``--slopes`` measures linear attentions in joint space-time alone, up to 100,352
tokens.
The slope is the exponent of the time in the tokens. Cases whose estimated time exceeds ``--limit``
seconds are left out.
"""

import argparse
import math
import time
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence

import torch

from benchmarks.machine import commit, machine, version
from benchmarks.measure import peak_memory
from mmlinattn.engine.runner.allocator import keep_freed_memory
from mmlinattn.models.backbones.space_time_block import SCHEMES, SpaceTimeBlock
from mmlinattn.models.layers import optimize_for_cpu

PATCHES = 14  # a side of a frame of 224 pixels
ATTENTIONS = {
    'softmax': 'SoftmaxAttention',
    'RALA': dict(type='RALA', rotary=False, lepe=0, gate='identity'),
    'RWGKA': 'RWGKA',
    'ripple': dict(type='RippleAttention', max_distance=2),
}
FRAMES = (8, 16, 32, 64, 96)
LONG_FRAMES = (32, 64, 128, 256, 512)  # 6,272 to 100,352 tokens


def call_of(scheme: str, attn: str, frames: int, train: bool, dims: int, heads: int) -> Callable:
    """Return a call of one block on a clip with so many frames."""
    torch.manual_seed(0)
    block = SpaceTimeBlock(dims, heads, 4, ATTENTIONS[attn], steps=SCHEMES[scheme])
    optimize_for_cpu(block)
    shape = (frames, PATCHES, PATCHES)
    clip = torch.randn(1, 1 + math.prod(shape), dims)

    def forward() -> None:
        with torch.no_grad():
            block(clip, shape, num_extra_tokens=1)

    def training() -> None:
        block(clip, shape, num_extra_tokens=1).square().mean().backward()
        block.zero_grad()

    return training if train else forward


def measure(
    scheme: str,
    attn: str,
    lengths: Sequence[int],
    limit: float,
    rounds: int,
    memory: bool,
    **options,
) -> Dict[int, Optional[tuple]]:
    """Return seconds and bytes by number of frames; None where a call may exceed the limit."""
    found: Dict[int, Optional[tuple]] = {}
    cpu, last = torch.device('cpu'), 0.0
    exponent = 2 if attn == 'softmax' and scheme in ('joint', 'sparse') else 1
    for i, frames in enumerate(lengths):
        growth = (frames / lengths[i - 1]) ** exponent if i else 0
        if last * growth > limit or None in found.values():
            found[frames] = None
            continue
        call = call_of(scheme, attn, frames, **options)
        for _ in range(2):  # the first grow the memory that later ones reuse
            call()
        last = min(seconds(call) for _ in range(rounds))
        found[frames] = (last, peak_memory(call, cpu) if memory else None)
    return found


def seconds(call: Callable) -> float:
    """Return the processor time of a call, which other processes change little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def slope(found: Dict[int, Optional[tuple]]) -> float:
    """Return the exponent of the time in the tokens, by least squares of the logarithms."""
    points = [(math.log(n), math.log(f[0])) for n, f in found.items() if f]
    x, y = (sum(values) / len(points) for values in zip(*points))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def row(name: List[str], found: Dict[int, Optional[tuple]]) -> str:
    cells = ['left out' if f is None else f'{f[0]:.3g} s' for f in found.values()]
    sizes = [f', {f[1] / 2**20:.0f} MiB' if f and f[1] else '' for f in found.values()]
    cells = [cell + size for cell, size in zip(cells, sizes)]
    fitted = f'{slope(found):.2f}' if sum(f is not None for f in found.values()) > 1 else ''
    return '| ' + ' | '.join([*name, *cells, fitted]) + ' |'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--slopes', action='store_true', help='linear attentions on long clips')
    parser.add_argument('--train', action='store_true', help='forward and backward pass')
    parser.add_argument('--schemes', nargs='+', default=list(SCHEMES), choices=SCHEMES)
    parser.add_argument('--attentions', nargs='+', default=list(ATTENTIONS), choices=ATTENTIONS)
    parser.add_argument('--frames', nargs='+', type=int, help='lengths, ascending')
    parser.add_argument('--dims', type=int, default=192, help='width of the block')
    parser.add_argument('--heads', type=int, default=3)
    parser.add_argument('--limit', type=float, default=60, help='seconds of a call at most')
    parser.add_argument('--rounds', type=int, default=5, help='times of each call')
    parser.add_argument(
        '--no-memory',
        action='store_true',
        help="times alone: a profile of ripple attention's training on long clips needs 20 GiB",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as in training
    lengths = args.frames or (LONG_FRAMES if args.slopes else FRAMES)
    options = dict(train=args.train, dims=args.dims, heads=args.heads)
    options.update(rounds=args.rounds, memory=not args.no_memory)
    cases = partial(measure, lengths=lengths, limit=args.limit, **options)
    print(f'{machine(torch.device("cpu"))}, torch {version("torch")}, commit {commit()}')
    heads = [f'{n} frames, {n * PATCHES**2:,} tokens' for n in lengths]
    print('| ' + ' | '.join(['scheme', 'attention', *heads, 'slope']) + ' |')
    print('| --- | --- |' + ' ---: |' * (len(lengths) + 1))
    for scheme in ['joint'] if args.slopes else args.schemes:
        for attn in args.attentions:
            if not (args.slopes and attn == 'softmax'):
                print(row([scheme, attn], cases(scheme, attn)), flush=True)


if __name__ == '__main__':
    main()

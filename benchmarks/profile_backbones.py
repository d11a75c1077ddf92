"""Profile backbones on a CPU: time shares by kind of operation, and share of the peak.

    python benchmarks/profile_backbones.py --images 224x224 512x512 800x1280 --keep-memory
    python benchmarks/profile_backbones.py --images 512x512 --docs profile

Prints a Markdown table. The peak is the speed of one large matrix product in the faster of the two
libraries. --docs NAME also shows the table in docs/benchmarks.md, as benchmarks/run.py does.
"""

import argparse
import functools
import sys
from pathlib import Path
from typing import Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import report, tables
from benchmarks.machine import facts
from benchmarks.measure import interleave, keep_freed_memory
from benchmarks.run import image, positive
from mmlinattn.analysis.complexity import analyse
from mmlinattn.models.backbones import RAVLT, MixTransformer
from mmlinattn.models.layers import cpu_linear

BACKBONES: Dict[str, Callable[[], nn.Module]] = {
    'ravlt-s': lambda: RAVLT('small', norm_cfg=dict(type='BN')),
    'ravlt-t-linear': lambda: RAVLT('tiny', 'RALA', norm_cfg=dict(type='BN')),
    'mit-b0-rwgka': lambda: MixTransformer('b0', 'RWGKA'),
}
# Parts of the names of torch's operations; the first match applies.
KINDS = {
    'linear layers': ('addmm', '_linear_pointwise', 'mkldnn_linear', 'aten::linear'),
    'softmax attention': ('scaled_dot_product',),
    'convolutions': ('convolution', 'conv2d'),
    'products of attention': ('bmm', 'baddbmm', 'aten::mm', 'matmul'),
    'norms': ('norm',),
    'copies': ('copy_', 'contiguous', 'clone', '_to_copy', 'aten::cat', 'aten::stack'),
    'elementwise': ('',),
}
SIDE = 2048
CPU = torch.device('cpu')


def kind_of(name: str) -> str:
    """Return the kind of an operation of torch's profiler."""
    return next(kind for kind, words in KINDS.items() if any(word in name for word in words))


def best(call: Callable[[], object], rounds: int) -> float:
    """Return the shortest time of a call in seconds, after one warm-up call."""
    call()
    return min(interleave({'call': call}, CPU, rounds, 0.0)['call'])


def peaks() -> Dict[str, float]:
    """Return the multiply-accumulates per second of a large product, by library."""
    a, b = torch.randn(2, SIDE, SIDE).unbind(0)
    calls = {'BLAS': lambda: a @ b}
    if hasattr(torch.ops.mkldnn, '_linear_pointwise'):
        calls['oneDNN'] = lambda: cpu_linear._product(a, b, None)
    return {name: SIDE**3 / best(call, 5) for name, call in calls.items()}


def shares(model: nn.Module, x: Tensor) -> Dict[str, float]:
    """Return the share of each kind in the time of all operations."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        model(x)
    found = dict.fromkeys(KINDS, 0.0)
    for event in recorded.key_averages():
        found[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: value / total for kind, value in found.items()}


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--backbones', nargs='+', choices=BACKBONES, default=['ravlt-s'])
    parser.add_argument('--images', nargs='+', type=image, default=[(512, 512)], metavar='HxW')
    parser.add_argument('--rounds', type=positive, default=5)
    parser.add_argument(
        '--bf16', action='store_true', help='a second row under autocast to bfloat16'
    )
    parser.add_argument('--keep-memory', action='store_true', help='see benchmarks/run.py')
    parser.add_argument('--docs', metavar='NAME', help='show it in docs/benchmarks.md, too')
    args = parser.parse_args(argv)
    try:
        if args.docs:
            report.check_place(args.docs)
    except ValueError as error:
        parser.error(str(error))
    if args.keep_memory:
        keep_freed_memory()
    peak = peaks()
    record = facts('profile_backbones.py', argv, CPU)
    speeds = (f'{value / 1e9:.0f} by {name}' for name, value in peak.items())
    record['largest product, G multiply-accumulates a second'] = ', '.join(speeds)
    columns, rows = ['backbone', 'image', 'dtype', 'ms', 'share of peak', *KINDS], []
    for name in args.backbones:
        model = cpu_linear.optimize_for_cpu(BACKBONES[name]().eval())
        for shape in args.images:
            products = analyse(model, shape).total
            for dtype in ['float32'] + ['bfloat16'] * args.bf16:
                cells = [name, '{}x{}'.format(*shape), dtype]
                bf16 = dtype == 'bfloat16'
                with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16, enabled=bf16):
                    seconds, found = profiled(model, shape, args.rounds)
                rate = products / seconds / max(peak.values())
                cells += [report.digits(1e3 * seconds), f'{rate:.0%}']
                rows.append([*cells, *(f'{share:.0%}' for share in found.values())])
    print(*(f'{name}: {value}' for name, value in record.items()), sep='\n', end='\n\n')
    print(*tables.markdown(columns, rows), sep='\n')
    if args.docs:
        report.publish(args.docs, dict(record, table=dict(columns=columns, lines=rows)))
    return 0


def profiled(
    model: nn.Module, shape: Tuple[int, int], rounds: int
) -> Tuple[float, Dict[str, float]]:
    """Return the seconds of a forward pass, and the share of each kind of operation."""
    x = torch.randn(1, 3, *shape)
    return best(functools.partial(model, x), rounds), shares(model, x)


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))

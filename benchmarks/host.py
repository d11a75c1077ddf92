"""Measure what the host does in a call: microseconds and Python calls, kernels replaced by no-ops.

    python benchmarks/host.py [--docs]

Up to some 16,000 tokens users of a GPU wait for the host. Tensors are on the CPU here, and device
and launches of an H100 are faked. A call does all that it does on a GPU, but for Triton's launcher.
SDPA runs in the same process with the same shapes, which the CPU computes. With a single token its
time is its dispatch alone. Calls are those of functions in Python and C, as profilers
count them. Layers run on the CPU, with the torch form. Training steps of backbones launch on the
faked GPU; operations are those that torch dispatches.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import machine, report
from mmlinattn import ops
from mmlinattn.ops.common import dispatch

BATCH, HEADS, SIDE, DIM = 1, 8, 32, 64
H100 = SimpleNamespace(
    name='NVIDIA H100 80GB HBM3', major=9, minor=0, multi_processor_count=132,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448,
)  # fmt: skip
LAYERS = ('SoftmaxAttention', 'LinearAttention', 'RALA', 'MALA', 'RWGKA', 'RippleAttention',
          'AdditiveAttention')  # fmt: skip
BACKBONES = {
    'RAVLT-T': dict(type='RAVLT', arch='tiny'),
    'MiT-B0, RWGKA': dict(type='MixTransformer', arch='b0', attn_cfg='RWGKA'),
    'MiT-B0, spatial reduction': dict(type='MixTransformer', arch='b0'),
    'Swin-T': dict(type='Swin', arch='t'),
    'DeiT-T': dict(type='ViT', arch='deit-t'),
}
# Tensors with a gradient, and the call.
Case = Tuple[Sequence[Tensor], Callable[[], Tensor]]
# Microseconds and calls, forward, then forward and backward.
Costs = Tuple[float, int, float, int]


class NoKernel:
    """Compiled kernel that does nothing."""

    function = packed_metadata = None

    @staticmethod
    def run(*args: object) -> None:
        """Take the arguments of a launch."""


def fake_gpu() -> None:
    """Let operators find an H100 under tensors of the CPU, and launch nothing."""
    from mmlinattn.ops.common import launch

    kernel = NoKernel()
    launch.start = lambda *args: kernel
    launch.current_stream = lambda: 0
    dispatch._unsupported_device = lambda q, backend: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda index: H100
    torch.Tensor.get_device = lambda x: 0


def operators() -> Dict[str, Case]:
    """Return the operators with kernels, at 1,024 tokens."""
    hw, count = (SIDE, SIDE), SIDE * SIDE
    q, k, v = (leaf(BATCH, HEADS, count, DIM) for _ in 'qkv')
    anchors = [leaf(HEADS, 64, DIM) for _ in 'qk']
    rings = leaf(BATCH, HEADS, count, 5)
    rotary = ops.Rotary(hw, DIM)
    return {
        'linear': ([q, k, v], lambda: ops.linear_attention(q, k, v, backend='triton')),
        'RALA': ([q, k, v], lambda: ops.rala_attention(q, k, v, rotary=rotary, backend='triton')),
        'MALA': ([q, k, v], lambda: ops.mala_attention(q, k, v, rotary=rotary, backend='triton')),
        'random walk': (
            [q, k, v, *anchors],
            lambda: ops.random_walk_attention(q, k, v, *anchors, backend='triton'),
        ),
        'ripple': (
            [q, k, v, rings],
            lambda: ops.ripple_attention(q, k, v, rings, hw_shape=hw, backend='triton'),
        ),
    }


def softmax(num_tokens: int) -> Case:
    """Return torch's softmax attention."""
    q, k, v = (leaf(BATCH, HEADS, num_tokens, DIM) for _ in 'qkv')
    return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v)


def layer(name: str) -> Case:
    """Return a layer of 64 channels in two heads, on a map of 12 x 12 tokens."""
    from mmengine.registry import MODELS

    import mmlinattn  # noqa: F401  registers

    attention = MODELS.build(dict(type=name, embed_dims=64, num_heads=2)).eval()
    x = torch.rand(1, 144, 64)
    return [*attention.parameters()], lambda: attention(x, (12, 12))


def leaf(*shape: int) -> Tensor:
    return torch.rand(shape).bfloat16().requires_grad_()


def costs(case: Case, seconds: float) -> Costs:
    """Return microseconds and calls of a case."""
    leaves, call = case
    grad = torch.ones_like(call())

    def step() -> object:
        return torch.autograd.grad(call(), leaves, grad)

    with torch.no_grad():
        forward = microseconds(call, seconds), python_calls(call)
    return (*forward, microseconds(step, seconds), python_calls(step))


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Return the median duration of a call."""
    for _ in range(20):
        call()
    times: List[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def python_calls(call: Callable[[], object]) -> int:
    """Return the number of functions in Python and C that a call enters."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ('call', 'c_call')

    call()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count - 1  # setprofile itself


class Operations(TorchDispatchMode):
    """Count the operations that torch dispatches."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def step_of(cfg: dict) -> Tuple[int, int]:
    """Return Python calls and operations of a training step of a backbone, one image of 64x64."""
    from mmengine.registry import MODELS

    torch.manual_seed(0)
    model, image = MODELS.build(dict(cfg)).train(), torch.rand(1, 3, 64, 64)

    def step() -> None:
        sum(out.sum() for out in model(image)).backward()

    calls = python_calls(step)
    with Operations() as operations:
        step()
    return calls, operations.count


def measure(seconds: float) -> Dict[str, dict]:
    """Return the costs by kind and name."""
    of_layers = {name: costs(layer(name), seconds) for name in LAYERS}
    found = {
        'SDPA, 1 token: its dispatch': costs(softmax(1), seconds),
        'SDPA, computed on the CPU': costs(softmax(SIDE * SIDE), seconds),
    }
    fake_gpu()
    found.update((name, costs(case, seconds)) for name, case in operators().items())
    with ops.use_backend('triton'):
        of_backbones = {name: step_of(cfg) for name, cfg in BACKBONES.items()}
    return {'operator': found, 'layer': of_layers, 'backbone': of_backbones}


TABLES = {
    'operator': ('Host alone, 1 x 8 heads of 64 channels, 1,024 tokens',
                 ('forward, us', 'calls', 'forward and backward, us', 'calls'), (0, 1, 2, 3)),
    'layer': ('Layers on the CPU, 64 channels in two heads, 12 x 12 tokens',
              ('forward, calls', 'forward and backward, calls'), (1, 3)),
    'backbone': ('Training step of a backbone, one image of 64x64',
                 ('calls', 'operations of torch'), (0, 1)),
}  # fmt: skip


def tables(found: Dict[str, dict], before: Dict[str, dict]) -> Dict[str, dict]:
    """Return the tables of docs/benchmarks.md, with the figures of an older commit."""
    result = {}
    for kind, (title, columns, chosen) in TABLES.items():
        lines = [
            [name, *(round(costs[i], 1) for costs in (row, before[kind][name]) for i in chosen)]
            for name, row in found[kind].items()
        ]
        names = [kind, *columns, *(f'before: {column}' for column in columns)]
        result[title] = dict(columns=names, lines=lines)
    return result


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=1.0, help='of each measurement')
    parser.add_argument('--docs', action='store_true', help='write docs/benchmarks.md')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = measure(args.seconds)
    for kind, rows in found.items():
        for name, row in rows.items():
            print(f'{kind:9} {name:28}', *(f'{x:9,.1f}' for x in row))
    if args.docs:
        path = report.DOCS / 'benchmarks' / 'host.json'
        before = json.loads(path.read_text())['before']
        facts = machine.facts('host.py', argv, torch.device('cpu'))
        facts['commit before'] = before['commit']
        record = dict(facts, before=before, tables=tables(found, before))
        report.publish('host', record)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

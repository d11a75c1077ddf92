"""Measure what the host does in a call: microseconds and Python calls, kernels replaced by no-ops.

    python benchmarks/host.py [--docs]

Up to some 16,000 tokens users of a GPU wait for the host. Tensors are on the CPU here, and device
and launches of an H100 are faked. A call does all that it does on a GPU, but for Triton's launcher.
SDPA runs in the same process with the same shapes, which the CPU computes. With a single token its
time is its dispatch alone. Calls are those of functions in Python and C, as profilers
count them. Layers run on the CPU, with the torch form. Training steps of backbones, by bfloat16
autocast, launch on the faked GPU; operations are those that torch dispatches. Optimizers take the
form that they have on a GPU.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mmlinattn  # noqa: F401  registers
from benchmarks import machine, report
from benchmarks.cases import Setup
from benchmarks.cases.problems import OPERATORS, Problem
from benchmarks.measure import wall
from mmlinattn import ops
from mmlinattn.engine.model import quiet
from mmlinattn.engine.runner.param_groups import merge_groups_in_steps
from mmlinattn.ops.common import dispatch

H100 = SimpleNamespace(
    name='NVIDIA H100 80GB HBM3', major=9, minor=0, multi_processor_count=132,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448,
)  # fmt: skip
CHOSEN = {'linear': 'linear', 'rala': 'RALA', 'mala': 'MALA', 'random-walk': 'random walk',
          'ripple': 'ripple'}  # fmt: skip
LAYERS = ('SoftmaxAttention', 'LinearAttention', 'RALA', 'MALA', 'RWGKA', 'RippleAttention',
          'AdditiveAttention')  # fmt: skip
BACKBONES = {
    'RAVLT-S': dict(type='RAVLT', arch='small'),
    'MiT-B0, RWGKA': dict(type='MixTransformer', arch='b0', attn_cfg='RWGKA'),
    'MiT-B0, spatial reduction': dict(type='MixTransformer', arch='b0'),
    'Swin-T': dict(type='Swin', arch='t'),
    'DeiT-T': dict(type='ViT', arch='deit-t', img_size=64),
    'DINOv3-S': dict(type='ViT', arch='dinov3-s'),
}
# Tensors with a gradient, and the call.
Case = Tuple[Sequence[Tensor], Callable[[], Tensor]]


def fake_gpu() -> None:
    """Let operators find an H100 under tensors of the CPU, and launch nothing."""
    from mmlinattn.ops.common import launch

    kernel = SimpleNamespace(function=None, packed_metadata=None, run=lambda *args: None)
    launch.start = lambda *args: kernel
    launch.current_stream = lambda: 0
    dispatch._unsupported_device = lambda q, backend: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda index: H100
    torch.Tensor.get_device = lambda x: 0


def problem(name: str, *hw_shape: int) -> Problem:
    """Return an operator with 8 heads of 64 channels."""
    cpu = torch.device('cpu')
    return Problem.of(name, Setup(hw_shape, 1, 8, 64, torch.bfloat16, cpu, True, 'contiguous'))


def operator(name: str) -> Case:
    """Return an operator with kernels, at 1,024 tokens."""
    found = problem(name, 32, 32)
    leaves = [*found.leaves.values()]
    return leaves, partial(OPERATORS[name].run, found.setup, leaves, backend='triton')


def softmax(*hw_shape: int) -> Case:
    """Return torch's softmax attention."""
    leaves = [*problem('linear', *hw_shape).leaves.values()]
    return leaves, partial(F.scaled_dot_product_attention, *leaves)


def layer(name: str) -> Case:
    """Return a layer of 64 channels in two heads, on a map of 12 x 12 tokens."""
    attention = MODELS.build(dict(type=name, embed_dims=64, num_heads=2)).eval()
    return [*attention.parameters()], partial(attention, torch.rand(1, 144, 64), (12, 12))


def costs(case: Case, seconds: float) -> tuple:
    """Return microseconds and calls, forward, then forward and backward."""
    leaves, call = case
    grad = torch.ones_like(call())

    def step() -> object:
        return torch.autograd.grad(call(), leaves, grad)

    with torch.no_grad():
        forward = microseconds(call, seconds), python_calls(call)
    return (*forward, microseconds(step, seconds), python_calls(step))


def microseconds(call: Callable[[], object], seconds: float) -> float:
    return 1e6 * wall(call, lambda: None, seconds, calls=5)


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
    torch.manual_seed(0)
    model, image = MODELS.build(dict(cfg)).train(), torch.rand(1, 3, 64, 64)
    parameters = [*model.parameters()]

    def step() -> object:
        with torch.autocast('cpu', torch.bfloat16):
            loss = sum(out.float().sum() for out in model(image))
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    calls = python_calls(step)
    with Operations() as operations:
        step()
    return calls, operations.count


def optimizer_step(merged: bool, **options: bool) -> Tuple[int, int, int]:
    """Return the groups, Python calls and operations of a step of AdamW for RAVLT-S."""
    model = MODELS.build(dict(BACKBONES['RAVLT-S']))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adam = dict(type='AdamW', lr=1e-4, weight_decay=0.05, **options)
    with quiet():
        cfg = ConfigDict(optimizer=adam, paramwise_cfg=dict(norm_decay_mult=0.0))
        optimizer = build_optim_wrapper(model, cfg).optimizer
    if merged:
        merge_groups_in_steps(optimizer)
    groups: list = []
    optimizer.register_step_pre_hook(lambda o, *_: groups.append(len(o.param_groups)))
    calls = python_calls(optimizer.step)
    with Operations() as operations:
        optimizer.step()
    return groups[0], calls, operations.count


def measure(seconds: float) -> Dict[str, dict]:
    """Return tables by title."""
    layers = {name: costs(layer(name), seconds) for name in LAYERS}
    found = {
        'SDPA, 1 token: its dispatch': costs(softmax(1, 1), seconds),
        'SDPA, computed on the CPU': costs(softmax(32, 32), seconds),
    }
    fake_gpu()
    found.update((title, costs(operator(name), seconds)) for name, title in CHOSEN.items())
    with ops.use_backend('triton'):
        backbones = {name: step_of(cfg) for name, cfg in BACKBONES.items()}

    def table(rows: Dict[str, tuple], *columns: str) -> dict:
        lines = [[name, *(round(cost, 1) for cost in row)] for name, row in rows.items()]
        return dict(columns=columns, lines=lines)

    return {
        'Host alone, 1 x 8 heads of 64 channels, 1,024 tokens': table(
            found, 'operator', 'forward, us', 'calls', 'forward and backward, us', 'calls'
        ),
        'Layers on the CPU, 64 channels in two heads, 12 x 12 tokens': table(
            {name: row[1::2] for name, row in layers.items()},
            'layer', 'forward, calls', 'forward and backward, calls',
        ),
        'Training step of a backbone, bfloat16 autocast, one image of 64x64': table(
            backbones, 'backbone', 'calls', 'operations of torch'
        ),
        'Step of AdamW for RAVLT-S with norm_decay_mult=0': table(
            {
                "MMEngine's groups": optimizer_step(False, foreach=True),
                'merged in the step': optimizer_step(True, foreach=True),
                'merged, fused=True': optimizer_step(True, fused=True),
            },
            'AdamW', 'groups', 'calls', 'operations of torch',
        ),
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=1.0, help='of each measurement')
    parser.add_argument('--docs', action='store_true', help='write docs/benchmarks/host.md')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    record = machine.facts('host.py', [*argv], torch.device('cpu'))
    record['tables'] = measure(args.seconds)
    print(*report.shown('host', record), sep='\n')
    if args.docs:
        (title, times), _, *steps = record['tables'].items()
        columns, *lines = [[*row[:2], row[3]] for row in (times['columns'], *times['lines'])]
        lines = [row for row in lines if 'computed' not in row[0]]
        record['tables'] = dict([(title, dict(columns=columns, lines=lines)), *steps])
        report.publish('host', record)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

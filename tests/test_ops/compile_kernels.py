"""Compile the kernels for GPUs that are not there and print what they take; without interpreter.

By hand, from the root of the repository (the whole check takes half an hour on a core)::

    python tests/test_ops/compile_kernels.py check --names kv_state  # against the table
    python tests/test_ops/compile_kernels.py rows --names kv_state  # new rows of the table

``tests/test_ops/test_kernel_table.py`` runs several tasks in one process: ``check + others``.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmlinattn.ops.common import kv_state, launch_table, reduction
from mmlinattn.ops.common.launch_table import WIDTHS, Config
from mmlinattn.ops.learnt_features import MAX_DIM
from mmlinattn.ops.learnt_features import triton_kernels as learnt
from mmlinattn.ops.linear import KERNELS
from mmlinattn.ops.linear import triton_kernels as linear
from mmlinattn.ops.random_walk import triton_kernels as anchors
from mmlinattn.ops.ripple import triton_kernels as ripple

BIN = Path(triton.__file__).parent / 'backends/nvidia/bin'
COMMON = dict(
    FEATURE=1, HAS_MASK=True, ROTARY=0, SCORED=False, OF_MEAN=False, HAS_TRANSITION=True,
    EXTRA_ROWS=1, PACKED=False, PER_HEAD=True, ENDLESS=True, ADD=True,
)  # fmt: skip
RALA = dict(SCORED=True, OF_MEAN=True)
MALA = dict(EXTRA_ROWS=2, OF_MEAN=True)
TILES = dict(T=8, REACH=3, BX=16, BR=8)  # R = 4, the paper's
# Kernel and flags of each row of the table; rotary position is d / 4 angles.
CASES = {
    'adaptive': (learnt._forward_kernel, {}),
    'adaptive_backward': (learnt._backward_kernel, {}),
    'kv_state': (kv_state._kv_state_kernel, {}),
    'query_output': (linear._query_output_kernel, {}),
    'query_backward': (linear._query_backward_kernel, dict(SUM=True, WRITE=True)),
    'key_backward': (linear._key_backward_kernel, {}),
    'query_mean': (linear._query_mean_kernel, {}),
    'rala_kv_state': (kv_state._kv_state_kernel, RALA),
    'rala_query_output': (linear._query_output_kernel, RALA),
    'rala_query_sums': (linear._query_backward_kernel, dict(RALA, SUM=True, WRITE=False)),
    'rala_key_backward': (linear._key_backward_kernel, RALA),
    'rala_query_backward': (linear._query_backward_kernel, dict(RALA, SUM=False, WRITE=True)),
    'mala_kv_state': (kv_state._kv_state_kernel, MALA),
    'mala_query_output': (linear._query_output_kernel, MALA),
    'mala_query_backward': (linear._query_backward_kernel, dict(MALA, SUM=True, WRITE=True)),
    'mala_key_backward': (linear._key_backward_kernel, MALA),
    'anchor_state': (anchors._state_kernel, {}),
    'anchor_solver': (anchors._solver_kernel, {}),
    'anchor_output': (anchors._output_kernel, {}),
    'anchor_output_backward': (anchors._output_backward_kernel, {}),
    'anchor_solver_backward': (anchors._solver_backward_kernel, {}),
    'anchor_backward': (anchors._backward_kernel, {}),
    'ripple': (ripple._forward_kernel, TILES),
    'ripple_query_backward': (ripple._query_backward_kernel, TILES),
    'ripple_far_backward': (ripple._far_backward_kernel, TILES),
    'ripple_key_backward': (ripple._key_backward_kernel, TILES),
}
TOKENS = {'Q', 'K', 'V', 'DOUT', 'DQ', 'DK', 'DV', 'AQ', 'AK', 'OUT', 'WEIGHT', 'DWEIGHT'}
TOKENS |= {'PQ', 'PK', 'GQ', 'GK', 'DS', 'DW', 'OUT2'}
FLOATS = {'scale', 'eps', 'root', 'decay'}
POINTERS = {'half': '*bf16', 'float': '*fp32'}
DTYPES = {'half': torch.bfloat16, 'float': torch.float32}
# Shared memory of a program and of a multiprocessor, in KiB.
SHARED = {80: (163, 164), 90: (227, 228)}
# (block, warps, stages) by how kernels go over tokens; the best guess without a GPU first.
CANDIDATES = {
    'tokens': (
        (64, 4, 3), (64, 4, 2), (64, 8, 3), (32, 4, 3), (64, 8, 2), (32, 4, 2), (32, 8, 2),
        (16, 4, 2), (128, 8, 3),
    ),
    'large': (  # float32, more than 64 channels or anchors, or gradients of parameters
        (64, 8, 2), (32, 8, 2), (32, 4, 2), (32, 8, 1), (16, 8, 2), (16, 8, 1), (16, 4, 2),
        (16, 4, 1), (64, 8, 3),
    ),
    'mean': ((128, 4, 1), (64, 4, 1), (256, 8, 1)),
    'anchors': ((64, 4, 1), (64, 8, 1), (64, 16, 1)),
    'tiles': ((16, 4, 3), (16, 4, 2), (16, 8, 2), (16, 4, 1), (16, 8, 1)),
}  # fmt: skip


class Report(NamedTuple):
    """Resources of one program, and instructions of its code."""

    registers: int
    stack: int  # bytes of spilled registers per thread
    shared: int  # KiB
    tensor_cores: int
    ffma: int
    ahead: int  # asynchronous loads


def build(kernel, dtype_class, arch, config, **flags):
    """Compile a kernel as a launch with contiguous channels and aligned tensors asks for."""
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if re.fullmatch('s.[dc]', name):
            flags.setdefault(name, 1)
        if name in flags:
            signature[name], constants[name] = 'constexpr', flags[name]
            continue
        if name in ('MASK', 'IMAGES'):
            signature[name] = '*u8' if name == 'MASK' else '*i32'
        elif name == 'ANGLES' and dtype_class == 'half':
            signature[name] = '*fp16'
        elif name.isupper() and name not in ('CHUNK', 'H', 'N'):
            signature[name] = POINTERS[dtype_class] if name in TOKENS else '*fp32'
        else:
            signature[name] = 'fp32' if name in FLOATS else 'i32'
        varies = parameter.do_not_specialize or name in ('steps', 'factors')
        if signature[name] != 'fp32' and not varies:
            aligned[place,] = [['tt.divisibility', 16]]
    return triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget('cuda', arch, 32),
        options=dict(num_warps=config.warps, num_stages=config.stages),
    )


def build_case(name, dim, num_anchors, dtype_class, arch, config, **units):
    """Compile an entry of the table; head dims and anchors are the largest that it serves."""
    kernel, flags = CASES[name]
    flags = {**COMMON, **flags, 'D': dim, 'BD': dim, 'BN': config.block}
    if num_anchors:
        flags.update(M=num_anchors, BM=num_anchors, ADD=num_anchors <= 64)
    if flags['SCORED'] or flags['EXTRA_ROWS'] == 2:
        flags['ROTARY'] = dim // 4
    return build(kernel, dtype_class, arch, config, **{**flags, **units})


def report(*case, **units) -> Report:
    """Compile an entry and return what it takes."""
    built = build_case(*case, **units)
    if 'FEATURE' in CASES[case[0]][0].arg_names:  # the interpreter's maximum keeps NaN anyway
        assert 'max.NaN.f32' in built.asm['ptx'], case
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(built.asm['cubin'])
        file.flush()
        usage, code = (
            subprocess.run([BIN / tool, option, file.name], capture_output=True, text=True).stdout
            for tool, option in (('cuobjdump', '-res-usage'), ('nvdisasm', '-c'))
        )
    taken = dict(re.findall(r'(REG|STACK):(\d+)', usage))
    counts = [
        len(re.findall(rf'\b(?:{names})\b', code))
        for names in ('HMMA|HGMMA|QGMMA', 'FFMA', 'LDGSTS|UBLKCP|UTMALDG')
    ]
    shared = -(-built.metadata.shared // 1024)
    return Report(int(taken['REG']), int(taken['STACK']), shared, *counts)


def blocks(taken: Report, warps: int, arch: int) -> int:
    """Return how many programs a multiprocessor holds."""
    of_warp = -(-max(taken.registers, 16) // 8) * 8 * 32
    return min(65536 // (of_warp * warps), SHARED[arch][1] // (taken.shared + 1))


def candidates(name, width, num_anchors, dtype_class):
    """Return candidate configurations, whose registers and shared memory are unknown yet."""
    large = dtype_class == 'float' or 128 in (width, num_anchors) or name == 'adaptive_backward'
    family = 'large' if large else 'tokens'
    if name == 'query_mean':
        family = 'mean'
    elif name.startswith('anchor_solver'):
        family = 'anchors'
    elif name.startswith('ripple') and name != 'ripple_far_backward':
        family = 'tiles'
    return [Config(*choice, registers=0, shared=0) for choice in CANDIDATES[family]]


def choose(name, width, num_anchors, dtype_class, arch):
    """Return the first candidate that fits, without stack, eight warps at once; else the rest."""
    best = None
    for config in candidates(name, width, num_anchors, dtype_class):
        taken = report(name, width, num_anchors, dtype_class, arch, config)
        warps = blocks(taken, config.warps, arch) * config.warps
        short = (max(0, taken.shared - SHARED[arch][0]), taken.stack, max(0, 8 - warps))
        if best is None or short < best[0]:
            best = short, config._replace(registers=taken.registers, shared=taken.shared), taken
        if not any(short):
            break
    return best[1:]


def skip_assembly():
    """Leave out optimising and assembling, which take most time."""

    def no_assembly(backend=None, stages=None, *_):
        if stages is None:  # from Triton 3.7 on also asked for a key of the cache and its hash
            return 'no assembly', 'no assembly'
        stages['ptx'] = lambda code, metadata: metadata.setdefault('name', '')
        stages['cubin'] = lambda *_: b'none'

    llvm.optimize_module = lambda *_, **__: None
    knobs.runtime.add_stages_inspection_hook = no_assembly


def check_others(args):
    """Compile what the table lacks: narrow heads, one anchor, packed images, sums of chunks.

    A single token is for Triton a constant, which has no type to convert.
    The last task of a process: it compiles to PTX alone.
    """
    skip_assembly()
    small = Config(16, 4, 1, 0, 0)
    for name, (kernel, flags) in CASES.items():
        if kernel is not linear._query_backward_kernel or name == 'query_backward':
            flags = dict(D=16, BD=16, M=1, BM=16, BN=16, **{**COMMON, **flags})
            build(kernel, 'half', 90, small, **{**flags, 'ROTARY': 0, 'N': 1})
            print(name)
    for name in KERNELS['rala']:
        build_case(name, 32, 0, 'half', 90, small, PACKED=True)
    # Copies of rotary tables are as wide as the power of 2 in their width allows.
    build_case('rala_query_output', 32, 0, 'half', 90, small, D=24, ROTARY=6)
    for mode in (reduction.SUM, reduction.MEAN, reduction.SOFTMAX):
        shape = dict(ROWS=1, COLS=272, M=1, D=272, BS=32, BC=64, MODE=mode)
        build(reduction._reduce_kernel, 'half', 90, small, **shape)


def check_table(args):
    """Compare what is compiled with the table; half types run on tensor cores."""
    for case in each(args):
        name, width, num_anchors, dtype_class, arch = case
        row = f'sm_{arch}', name, DTYPES[dtype_class], width, num_anchors
        config = launch_table.find(*row)
        if config is None:
            continue
        taken = report(*case, config)
        if triton.__version__.startswith('3.6.'):  # others need a little more or less
            assert (taken.registers, taken.shared) == config[3:], (*case, config, taken)
        # Products of 128 x 128 are of float32 on purpose.
        is_float = name == 'query_mean' or (name.startswith('anchor_solver') and num_anchors == 128)
        on_tensor_cores = (taken.tensor_cores > 0) == (not is_float)
        assert dtype_class == 'float' or on_tensor_cores, (*case, config, taken)
        print(name, *case[1:], *config, taken, flush=True)


def print_rows(args):
    """Print rows of the table with the configurations that are chosen without a GPU."""
    rows = {}
    for name, width, num_anchors, dtype_class, arch in each(args):
        config, taken = choose(name, width, num_anchors, dtype_class, arch)
        key = f'sm_{arch} {name}, {dtype_class}' + (f', {num_anchors}' if num_anchors else '')
        rows.setdefault(key, []).append(f'{tuple(config)} stack {taken.stack}')
        print(key, width, tuple(config), taken, flush=True)
    for key, cells in rows.items():
        print(key, *cells)


def each(args):
    for arch in args.archs:
        for dtype_class in args.dtypes:
            for name in args.names or CASES:
                anchors = (64, 128) if name.startswith('anchor') else (0,)
                for num_anchors in anchors if dtype_class == 'half' else anchors[:1]:
                    for width in args.widths:
                        if not (name.startswith('adaptive') and width > MAX_DIM):
                            yield name, width, num_anchors, dtype_class, arch


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('task', choices=['check', 'rows', 'others'])
    parser.add_argument('--names', nargs='*', choices=list(CASES))
    parser.add_argument('--widths', nargs='*', type=int, default=list(WIDTHS))
    parser.add_argument('--dtypes', nargs='*', default=list(DTYPES))
    parser.add_argument('--archs', nargs='*', type=int, default=[80, 90])
    args = parser.parse_args(words)
    tasks = dict(check=check_table, rows=print_rows, others=check_others)
    tasks[args.task](args)


if __name__ == '__main__':
    for task in ' '.join(sys.argv[1:]).split(' + '):
        print('task', task)
        main(task.split())

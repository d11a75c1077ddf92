"""Compiles the kernels for GPUs that are not there, and says what they take; without interpreter.

By hand, from the root of the repository (the whole report takes half an hour on a core)::

    python tests/test_ops/compile_kernels.py report --sizes 64 --kinds half
    python tests/test_ops/compile_kernels.py choose  # writes the shipped table
    TRITON_ALWAYS_COMPILE=1 python tests/test_ops/compile_kernels.py seconds --sizes 64 \\
        --kinds half --archs 80 --names kv_state query_output query_backward key_backward

test_kernel_table.py runs the other tasks, several in one process: ``fixed + units``.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmlinattn.ops.adaptive import triton_kernels as adaptive
from mmlinattn.ops.anchors import triton_kernels as anchors
from mmlinattn.ops.common import kv_state, launch_table, reduction
from mmlinattn.ops.common.launch_table import Config
from mmlinattn.ops.common.tuning import SIZES, candidates, sizes_of
from mmlinattn.ops.epilogue import triton_kernels as epilogue
from mmlinattn.ops.linear import triton_kernels as linear
from mmlinattn.ops.ripple import triton_kernels as ripple

# Another version of Triton may need a little more or less.
WRITTEN_WITH = '3.6.0'
BIN = Path(triton.__file__).parent / 'backends/nvidia/bin'
COMMON = dict(
    FEATURE=1,
    HAS_MASK=True,
    ROTARY=0,
    SCORED=False,
    OF_MEAN=False,
    HAS_TRANSITION=True,
    GIVEN=False,
    ROWS=1,
    PACKED=False,
)
COMMON['PER_HEAD'] = True
RALA = dict(SCORED=True, OF_MEAN=True)
MALA = dict(ROWS=2, OF_MEAN=True)
TILES = dict(T=8, REACH=3, BX=16, BR=8, STICK=1, BOXES=64)  # R = 4, the paper's
# Kernel and flags of each entry of the table; rotary position is d / 4 angles.
CASES = {
    'adaptive': (adaptive._forward_kernel, {}),
    'adaptive_backward': (adaptive._backward_kernel, {}),
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
    'anchor_solver': (anchors._solver_kernel, dict(ENDLESS=True)),
    'anchor_output': (anchors._output_kernel, {}),
    'anchor_output_backward': (anchors._output_backward_kernel, {}),
    'anchor_solver_backward': (anchors._solver_backward_kernel, dict(ENDLESS=True)),
    'anchor_backward': (anchors._backward_kernel, {}),
    'ripple': (ripple._forward_kernel, TILES),
    'ripple_weight_backward': (ripple._weight_backward_kernel, TILES),
    'ripple_query_backward': (ripple._query_backward_kernel, TILES),
    'ripple_far_backward': (ripple._far_backward_kernel, TILES),
    'ripple_key_backward': (ripple._key_backward_kernel, TILES),
}
TOKENS = {'Q', 'K', 'V', 'DOUT', 'DQ', 'DK', 'DV', 'AQ', 'AK', 'OUT', 'WEIGHT', 'DWEIGHT'}
TOKENS |= {'PQ', 'PK', 'GQ', 'GK', 'GATE', 'RESULT', 'SUM', 'GRAD', 'DSUM', 'DGATE'}
FLOATS = {'scale', 'eps', 'root', 'decay'}
POINTERS = {'half': '*bf16', 'float': '*fp32'}
# Kernels that the table does not have, which fit every GPU: flags and warps.
LOCAL = dict(SIDE=epilogue.SIDE, BC=epilogue.CHANNELS, SIZE=5)
FIXED = {
    'local_gate': (
        epilogue._forward_kernel, dict(LOCAL, HAS_BIAS=True, GATED=True, KEEP=True), 8
    ),
    'gate_backward': (
        epilogue._gate_backward_kernel, dict(BN=epilogue.TOKENS, BC=epilogue.CHANNELS), 4
    ),
}  # fmt: skip
# Shared memory of a program and of a multiprocessor, less what each program takes besides.
SHARED = {80: (163 << 10, 164 << 10), 90: (227 << 10, 228 << 10)}


class Report(NamedTuple):
    """What one program takes, and instructions of its code."""

    registers: int
    stack: int
    shared: int
    tensor_cores: int
    ffma: int
    ahead: int  # asynchronous loads
    seconds: float


def build(kernel, kind, arch, config, **flags):
    """A kernel compiled as a launch with contiguous channels and aligned tensors asks for."""
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if re.fullmatch('s.[dc]', name):
            flags.setdefault(name, 1)
        if name in flags:
            signature[name], constants[name] = 'constexpr', flags[name]
            continue
        if name in ('MASK', 'BOX', 'IMAGES'):
            signature[name] = '*u8' if name == 'MASK' else '*i32'
        elif name.isupper() and name not in ('CHUNK', 'H', 'N', 'C'):
            token = (name in TOKENS and kernel is not linear._query_mean_kernel) or name == 'Q'
            signature[name] = POINTERS[kind] if token else '*fp32'
        else:
            signature[name] = 'fp32' if name in FLOATS else 'i32'
        if signature[name] != 'fp32' and name not in (
            'H',
            'across',
            'tiles',
            'height',
            'width',
            'steps',
            'factors',
        ):
            aligned[place,] = [['tt.divisibility', 16]]
    return triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget('cuda', arch, 32),
        options=dict(num_warps=config.warps, num_stages=config.stages),
    )


def build_case(name, size, kind, arch, config, **units):
    """An entry of the table; head dims and anchors are the largest that it serves."""
    kernel, flags = CASES[name]
    dim, *anchors = map(int, size.split('x'))
    flags = {**COMMON, **flags, 'D': dim, 'BD': dim, 'BN': config.block, 'BK': config.block}
    if anchors:
        flags.update(M=anchors[0], BM=anchors[0])
    if flags['SCORED'] or flags['ROWS'] == 2:
        flags['ROTARY'] = dim // 4
    return build(kernel, kind, arch, config, **{**flags, **units})


def report(name, size, kind, arch, config) -> Report:
    start = time.time()
    built = build_case(name, size, kind, arch, config)
    return taken_by(built, time.time() - start)


def taken_by(built, seconds) -> Report:
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
    return Report(int(taken['REG']), int(taken['STACK']), built.metadata.shared, *counts, seconds)


def blocks(taken: Report, warps: int, arch: int) -> int:
    """Programs that a multiprocessor holds."""
    of_warp = -(-max(taken.registers, 16) // 8) * 8 * 32
    return min(65536 // (of_warp * warps), SHARED[arch][1] // (taken.shared + 1024))


def choose(name, size, kind, arch):
    """The first candidate that fits, without stack, eight warps at once; else the nearest."""
    best = None
    for config in candidates(name, size, kind):
        taken = report(name, size, kind, arch, config)
        warps = blocks(taken, config.warps, arch) * config.warps
        # What does not fit shuts such heads out, see refuses().
        excess = max(0, taken.shared - SHARED[arch][0])
        short = (excess, taken.stack, max(0, 8 - warps))
        if best is None or short < best[0]:
            taking = dict(registers=taken.registers, shared=taken.shared, stack=taken.stack)
            best = short, config._replace(**taking), taken
        if not any(short):
            break
    return best[1:]


def skip_assembly():
    """Shared memory is known before the code is optimised and assembled, which takes most time."""

    def no_assembly(backend=None, stages=None, *_):
        if stages is None:  # from Triton 3.7 on also asked for a key of the cache and its hash
            return 'no assembly', 'no assembly'
        stages['ptx'] = lambda code, metadata: metadata.setdefault('name', '')
        stages['cubin'] = lambda *_: b'none'

    llvm.optimize_module = lambda *_, **__: None
    knobs.runtime.add_stages_inspection_hook = no_assembly


def check_units(args):
    """Triton hands a kernel an argument of 1 as a constant, which has no type to convert.

    The last task of a process: it compiles to PTX alone.
    """
    skip_assembly()
    units = dict.fromkeys(('H', 'N', 'height', 'width', 'outer', 'heads', 'splits'), 1)
    small = Config(16, 4, 1, 0, 0)
    for name, (kernel, flags) in CASES.items():
        if kernel is not linear._query_backward_kernel or name == 'query_backward':
            flags = dict(D=16, BD=16, M=1, BM=16, BN=16, BK=16, **{**COMMON, **flags})
            build(kernel, 'half', 90, small, **{**flags, **units, 'ROTARY': 0})
            print(name)
    # Rotary tables of one column; the kernels that the table does not have.
    build_case('rala_kv_state', '32', 'half', 90, small, **units)
    # Packed images, whose sizes are read from a table.
    for name in linear.RALA_KERNELS:
        build_case(name, '32', 'half', 90, small, PACKED=True)
    for mode in (reduction.SUM, reduction.MEAN, reduction.SOFTMAX):
        shape = dict(ROWS=1, COLS=272, M=1, D=272, BS=32, BC=64, MODE=mode)
        build(reduction._reduce_kernel, 'half', 90, small, **shape, **units)
    build(ripple._box_kernel, 'half', 90, small, BN=1024, **units)
    ones = dict.fromkeys(('C', 'N', 'height', 'width', 'tiles', 'across'), 1)
    for kernel, flags, _ in FIXED.values():
        build(kernel, 'half', 90, small, **flags, **ones)


def check_table(args):
    """What is compiled is what the table says; half types run on tensor cores."""
    tables = launch_table.read(launch_table.SHIPPED)
    for name, size, kind, arch in each(args):
        config = tables[f'sm_{arch}'][name].get(kind, {}).get(size)
        if config is None:
            continue
        taken = report(name, size, kind, arch, config)
        case = name, size, kind, arch, config, taken
        if triton.__version__ == WRITTEN_WITH:
            found = (taken.registers, taken.shared, taken.stack)
            assert found == config[3:], case
        assert kind == 'float' or (taken.tensor_cores > 0) == (name != 'query_mean'), case
        print(*case)


def check_fixed(args):
    """They take no stack, and 16 warps fit a multiprocessor at once."""
    for name, (kernel, flags, warps) in FIXED.items():
        for kind in args.kinds:
            for arch in args.archs:
                config = Config(0, warps, 2, 0, 0)
                taken = taken_by(build(kernel, kind, arch, config, **flags), 0.0)
                held = blocks(taken, warps, arch) * warps
                assert not taken.stack and held >= 16, (name, taken)
                print(name, kind, arch, taken)


def line(*cells):
    print(*(f'{cell!s:<9}' for cell in cells), flush=True)


def each(args):
    for arch in args.archs:
        for kind in args.kinds:
            for name in args.names or CASES:
                for size in sizes_of(name):
                    if args.first and size.endswith('x128'):
                        continue
                    if int(size.split('x')[0]) in args.sizes:
                        yield name, size, kind, arch


def write_table(args):
    """Entries that the table lacks, each at once: it can be made in parts."""
    for name, size, kind, arch in each(args):
        tables = launch_table.read(args.out) if args.out.exists() else {}
        if size in tables.get(f'sm_{arch}', {}).get(name, {}).get(kind, {}):
            continue
        config, taken = choose(name, size, kind, arch)
        entry = {f'sm_{arch}': {name: {kind: {size: config}}}}
        launch_table.write(args.out, launch_table.merged(tables, entry))
        line(f'{name:<24}', size, kind, arch, *config[:3], *taken[:-1], f'{taken.seconds:.1f}')


def print_report(args):
    tables = launch_table.read(launch_table.SHIPPED)
    line(f'{"kernel":<24}', 'size', 'type', 'sm', *Config._fields[:3], *Report._fields[:-1])
    for name, size, kind, arch in each(args):
        config = tables[f'sm_{arch}'][name].get(kind, {}).get(size)
        if config is None:
            continue
        taken = report(name, size, kind, arch, config)
        line(f'{name:<24}', size, kind, arch, *config[:3], *taken[:-1])


def print_seconds(args):
    """Print the seconds to compile the first candidate, all of them, and their number."""
    totals = [0.0, 0.0, 0]
    for name, size, kind, arch in each(args):
        every = candidates(name, size, kind)
        seconds = [report(name, size, kind, arch, config).seconds for config in every]
        line(
            f'{name:<24}', size, kind, arch, f'{seconds[0]:.1f}', f'{sum(seconds):.1f}', len(every)
        )
        totals = [totals[0] + seconds[0], totals[1] + sum(seconds), totals[2] + len(every)]
    line('all: first, every, count', *(f'{total:.1f}' for total in totals))


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('task')
    parser.add_argument('--names', nargs='*', choices=list(CASES))
    parser.add_argument('--sizes', nargs='*', type=int, default=list(SIZES))
    parser.add_argument('--kinds', nargs='*', default=['half', 'float'])
    parser.add_argument('--first', action='store_true', help='of walks up to 64 anchors alone')
    parser.add_argument(
        '--out', type=Path, default=launch_table.SHIPPED, help='table to choose for'
    )
    parser.add_argument('--archs', nargs='*', type=int, default=[80, 90])
    args = parser.parse_args(words)
    tasks = dict(report=print_report, choose=write_table, check=check_table, units=check_units)
    tasks.update(fixed=check_fixed, seconds=print_seconds)
    tasks[args.task](args)


if __name__ == '__main__':
    for task in ' '.join(sys.argv[1:]).split(' + '):
        print('task', task)
        main(task.split())

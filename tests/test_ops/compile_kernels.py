"""Compiles the kernels for GPUs that are not there; test_fused.py runs it without the interpreter.

The argument is the task: compile_all, compile_units or check_table.
"""

import re
import sys

import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmlinattn.ops.common import key_sums
from mmlinattn.ops.common.triton import OPTIONS, block_size
from mmlinattn.ops.linear import kernels as linear
from mmlinattn.ops.random_walk import kernels as random_walk
from mmlinattn.ops.ripple import kernels as ripple

FLAGS = dict(
    T=8, REACH=3, BX=16, BK=64, BR=8, STICK=1, HAS_FLAGS=True,
    FEATURE=1, HAS_MASK=True, SCORED=True, ROTARY=True, SUM=True, WRITE=True,
    HAS_MEAN=True, HAS_WALK=True,
)  # fmt: skip
TOKENS = {'Q', 'K', 'V', 'DOUT', 'DQ', 'DK', 'DV', 'AQ', 'AK', 'OUT'}
MODULES = {key_sums: 1, linear: 4, random_walk: 4, ripple: 4}  # kernels
POINTERS = {'half': '*bf16', 'float': '*fp32'}
# Those that need the most, as far as it takes no more than half a minute.
ARCHITECTURES = {
    ('half', 64): (90,),
    ('half', 128): (80, 90),
    ('float', 64): (90,),
    ('float', 128): (80,),
}


def build(kernel, dim, kind, arch, **given):
    """A kernel compiled for a head dim, 'half' or 'float', and an architecture such as 90."""
    flags = dict(dict(FLAGS, BD=dim, BM=dim, BN=block_size(dim)), **given)
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if re.fullmatch('s.d', name):
            flags.setdefault(name, 1)
        if name in flags:
            signature[name], constants[name] = 'constexpr', flags[name]
        elif name in ('MASK', 'FAR'):
            signature[name] = '*u8'
        elif (name.isupper() and len(name) > 1 and name != 'CHUNK') or name in 'QKVSZWX':
            signature[name] = POINTERS[kind] if name in TOKENS else '*fp32'
        else:
            signature[name] = 'fp32' if name in ('scale', 'eps', 'root') else 'i32'
        if signature[name] in ('i32',) or signature[name][0] == '*':
            aligned[place,] = [['tt.divisibility', 16]]
    return triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget('cuda', arch, 32),
        options=OPTIONS,
    )


def compile_all():
    for module in MODULES:
        kernels = [f for n, f in vars(module).items() if n.endswith('_kernel')]
        assert len(kernels) == MODULES[module]
        for kernel in kernels:
            built = build(kernel, 64, 'half', 90)
            assert built.asm['cubin']
            table = linear.SHARED_KIB if module is key_sums else module.SHARED_KIB
            table = table[0] if module is random_walk else table
            assert built.metadata.shared <= table['half'][0] * 1024, kernel
            print(kernel.fn.__name__)


def skip_assembly():
    """Shared memory is known before the code is optimised and assembled, which takes most time."""

    def no_assembly(backend=None, stages=None, *_):
        if stages is None:  # from Triton 3.7 on also asked for a key of the cache and its hash
            return 'no assembly', 'no assembly'
        stages['ptx'] = lambda code, metadata: metadata.setdefault('name', '')
        stages['cubin'] = lambda *_: b'none'

    llvm.optimize_module = lambda *_, **__: None
    knobs.runtime.add_stages_inspection_hook = no_assembly


def compile_units():
    skip_assembly()
    units = dict.fromkeys(('H', 'N', 'M', 'height', 'width'), 1)
    for module in MODULES:
        for name, kernel in vars(module).items():
            if name.endswith('_kernel'):
                build(kernel, 16, 'half', 90, **units)
                print(name)


def check_table():
    skip_assembly()
    walk = [random_walk._state_backward_kernel]
    largest = (
        ([linear._query_backward_kernel, linear._key_backward_kernel], linear.SHARED_KIB, 64),
        (walk, random_walk.SHARED_KIB[0], 64),
        (walk, random_walk.SHARED_KIB[1], 128),
        ([ripple._key_backward_kernel], ripple.SHARED_KIB, 64),
    )
    for kernels, table, anchors in largest:
        for kind in ('half', 'float'):
            for dim, limit in zip((64, 128), table[kind]):
                widest = max(dim, anchors)
                blocks = dict(BM=anchors, BN=block_size(widest))
                needed = max(
                    build(kernel, dim, kind, arch, **blocks).metadata.shared / 1024
                    for kernel in kernels
                    for arch in ARCHITECTURES[kind, widest]
                )
                case = kernels, kind, dim, anchors, needed, limit
                # The tables say what the most wasteful of the tested Tritons takes.
                assert 0.65 * limit <= needed <= limit, case
                print(*case)
    for kernel in (key_sums._state_kernel, linear._query_backward_kernel):
        assert build(kernel, 64, 'float', 100).metadata.shared <= 227 * 1024


if __name__ == '__main__':
    globals()[sys.argv[1]]()

"""Path from an operator to its launches, on GPUs that are faked: no interpreter, no kernel runs.

The tensors are fake ones on ``cuda:0``, so that every question about device, dtype and width is
answered as on the GPU; only the launch itself is replaced.
"""

import inspect
import re
import traceback
import weakref
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from mmlinattn.models.layers import RALA, RWGKA
from mmlinattn.ops import (
    BackendError,
    PackedShapes,
    Rotary,
    adaptive_features,
    linear_attention,
    mala_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)
from mmlinattn.ops.common import dispatch

if dispatch.TRITON_PROBLEM:
    pytest.skip(dispatch.TRITON_PROBLEM, allow_module_level=True)

from mmlinattn.ops.common import launch as launching
from mmlinattn.ops.common import launch_table
from mmlinattn.ops.linear.triton_kernels import KernelOptions, _Launches

pytestmark = pytest.mark.filterwarnings('ignore:Accessing the data pointer of FakeTensor')

COMMON = dict(regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048)
GPUS = {
    'H100': SimpleNamespace(
        name='NVIDIA H100 80GB HBM3', major=9, minor=0, multi_processor_count=132,
        shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448, **COMMON,
    ),
    'A100': SimpleNamespace(
        name='NVIDIA A100-SXM4-80GB', major=8, minor=0, multi_processor_count=108,
        shared_memory_per_multiprocessor=167936, shared_memory_per_block_optin=166912, **COMMON,
    ),
    'B200': SimpleNamespace(
        name='NVIDIA B200', major=10, minor=0, multi_processor_count=148,
        shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448, **COMMON,
    ),
    'RTX 4090': SimpleNamespace(
        name='NVIDIA GeForce RTX 4090', major=8, minor=9, multi_processor_count=128,
        shared_memory_per_multiprocessor=102400, shared_memory_per_block_optin=101376, **COMMON,
    ),
    'V100': SimpleNamespace(
        name='Tesla V100-SXM2-16GB', major=7, minor=0, multi_processor_count=80,
        shared_memory_per_multiprocessor=98304, shared_memory_per_block_optin=98304, **COMMON,
    ),
}  # fmt: skip
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (16, 20, 32, 64, 128)
B, H, HW = 2, 3, (24, 40)
N = HW[0] * HW[1]
PACKED = PackedShapes([(24, 30), (15, 16)])  # as many tokens
# Kernels of each call, forward and backward, in the order of their launches.
# Those that add chunks are left out: few tokens are one chunk.
STATE = '_kv_state_kernel'
LINEAR = (
    [STATE, '_query_output_kernel'],
    ['_query_backward_kernel', '_key_backward_kernel'],
)
WALK = (
    ['_state_kernel', '_solver_kernel', '_output_kernel'],
    ['_output_backward_kernel', '_solver_backward_kernel', '_backward_kernel'],
)
RALA_KERNELS = (
    ['_query_mean_kernel', *LINEAR[0]],
    [*LINEAR[1], '_query_backward_kernel'],
)
RIPPLE = (
    [STATE, '_forward_kernel'],
    ['_query_backward_kernel', '_far_backward_kernel', '_key_backward_kernel'],
)  # fmt: skip
CALLS = {
    'linear': (LINEAR, lambda q, k, v, o: linear_attention(q, k, v, **o)),
    'rala': (
        RALA_KERNELS,
        lambda q, k, v, o: rala_attention(q, k, v, rotary=Rotary(HW, q.shape[-1]), **o),
    ),
    'cross': (
        RALA_KERNELS,
        lambda q, k, v, o: rala_attention(q[:, :, ::2], k, v, cross=True, **o),
    ),
    'mala': (
        LINEAR,
        lambda q, k, v, o: mala_attention(q, k, v, rotary=Rotary(HW, q.shape[-1]), **o),
    ),
    'walk': (
        WALK,
        lambda q, k, v, o: random_walk_attention(q, k, v, *two(q, (H, 64, q.shape[-1])), **o),
    ),
    'one step': (
        ([WALK[0][0], WALK[0][2]], WALK[1]),
        lambda q, k, v, o: random_walk_attention(
            q, k, v, *two(q, (B, H, 49, q.shape[-1])), steps=1, **o
        ),
    ),
    'ripple': (
        RIPPLE,
        lambda q, k, v, o: ripple_attention(q, k, v, q.new_empty(B, H, N, 5), hw_shape=HW, **o),
    ),
    'packed': (
        RALA_KERNELS,
        lambda q, k, v, o: rala_attention(
            *(x[:1] for x in (q, k, v)), rotary=Rotary(PACKED, q.shape[-1]), packed=PACKED,
            backend=o['backend'],
        ),
    ),
    'adaptive': (
        (['_forward_kernel'], ['_backward_kernel']),
        lambda q, k, v, o: adaptive_features(
            q, k, *learnt(q, q.shape[-1]), backend=o['backend']
        ),
    ),
}  # fmt: skip


def two(q, shape):
    return [q.new_empty(shape) for _ in range(2)]


def learnt(q, dim):
    return [q.new_empty(*size) for size in ((dim, dim), (dim, 2 * dim), (dim,))]


def describe(args):
    """Return what a compiled kernel assumes of its arguments."""
    return [x.dtype if isinstance(x, torch.Tensor) else x for x in args]


class Compiled:
    """Compiled kernel that records its launches.

    All have the numbers of the first one, and its tensors' dtypes, for which it is compiled.
    """

    function, packed_metadata = 'function', 'metadata'

    def __init__(self, kernel, args, seen):
        self.kernel, self.first, self.seen = kernel, describe(args), seen

    def run(self, x, y, z, *args):
        """Check the arguments of :meth:`triton.compiler.CompiledKernel.run`."""
        assert args[:6] == (7, self.function, self.packed_metadata, None, None, None)
        tensors, memories = Compiled.tensors, Compiled.memories
        given = args[6:][: len(tensors)]
        assert given == tuple(x if x in memories else x.data_ptr() for x in tensors)
        held = [memories[x]() if x in memories else x for x in tensors]
        assert None not in held, 'the memory of an address is free'
        self.launch((x, y, z), (*held, *args[6 + len(tensors) :]))

    def launch(self, grid, args):
        assert len(args) == len(self.kernel.arg_names) and all(size > 0 for size in grid)
        assert describe(args) == self.first
        self.seen.append((self.kernel.__name__, traceback.extract_stack()))


def fake_gpu(monkeypatch, name):
    """Fake a GPU and return the launches of later calls: names of kernels and their call stacks."""
    seen = []
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda index: GPUS[name])
    monkeypatch.setattr(torch.cuda, 'current_device', lambda: 0)
    # Fake tensors would take the custom operator.
    monkeypatch.setattr(launching, 'has_dispatch_mode', lambda: False)
    monkeypatch.setattr(launching, 'PLAIN', (FakeTensor,))
    monkeypatch.setattr(dispatch, 'gpu_problem', dispatch._gpu_problem.__wrapped__)

    def start(launch, tensors):
        """Bind the arguments as Triton does and return what later calls launch."""
        bound = inspect.signature(launch.kernel.fn).bind(
            *tensors, *launch.sizes, **launch.constants
        )
        args = list(bound.arguments.values())  # in the order of the kernel's parameters
        compiled = Compiled(launch.kernel, args, seen)
        compiled.launch(launch.grid, args)
        return compiled

    launch, parts, Compiled.memories = launching.Launch.__call__, launching.Memory.parts, {}

    def call(self, *tensors):
        Compiled.tensors = tensors  # `run` gets their addresses
        launch(self, *tensors)

    def parts_by_address(self, memory, last):
        found = parts(self, memory, last)
        if last.compiled is None:
            return found
        # Fake tensors have no address.
        found = [10**9 + len(Compiled.memories) + i for i in range(len(found))]
        Compiled.memories.update((address, weakref.ref(memory)) for address in found)
        return found

    monkeypatch.setattr(launching, 'start', start)
    monkeypatch.setattr(launching.Launch, '__call__', call)
    monkeypatch.setattr(launching.Memory, 'parts', parts_by_address)
    monkeypatch.setattr(launching, 'current_stream', lambda: 7)
    launch_table._find_unsupported.cache_clear()
    launching._planned.cache_clear()
    return seen


@pytest.fixture
def clean():
    """Forget what was cached for a faked GPU."""
    yield
    with pytest.MonkeyPatch.context() as patch:
        fake_gpu(patch, 'H100')


def run(call, dtype, dim, backend='triton'):
    """Run a call forward and backward on fake tensors."""
    with FakeTensorMode():
        q, k, v = (
            torch.empty(B, H, N, dim, device='cuda', dtype=dtype).requires_grad_() for _ in 'qkv'
        )
        mask = torch.empty(B, N, device='cuda', dtype=torch.bool)
        out = call(q, k, v, dict(key_padding_mask=mask, backend=backend))
        outs = out if isinstance(out, tuple) else (out,)
        # Not torch.autograd.grad, whose engine looks for the device.
        outs[0].grad_fn.apply(*map(torch.empty_like, outs))


@pytest.mark.parametrize('gpu', ['H100', 'A100'])
@pytest.mark.parametrize('dim', WIDTHS)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('call', CALLS)
def test_every_operator_reaches_its_launches(monkeypatch, clean, gpu, call, dtype, dim):
    """The first call compiles, the second launches what was compiled."""
    seen = fake_gpu(monkeypatch, gpu)
    (forward, backward), function = CALLS[call]
    try:
        run(function, dtype, dim)
        run(function, dtype, dim)
    except BackendError as error:
        if call == 'adaptive' and dim > 64:
            assert 'at most 64 channels' in str(error)
        else:  # what float32 lacks is in docs/design.md: trained walks on sm_80, wide heads
            assert dtype == torch.float32
            assert re.search('no configuration|shared memory', str(error))
        return
    names = [name for name, _ in seen if name != '_reduce_kernel']
    assert names == 2 * [*forward, *backward]


def test_exact_products_that_a_gpu_does_not_have(monkeypatch, clean):
    """Triton 3.6 compiles them for sm_100 as TF32, in three parts up to 64 channels alone."""
    seen = fake_gpu(monkeypatch, 'B200')
    run(CALLS['linear'][1], torch.float32, 64)
    run(CALLS['linear'][1], torch.half, 128)
    assert seen
    with pytest.raises(BackendError, match='float32 products of head dim 128 are TF32 on NVIDIA B'):
        run(CALLS['linear'][1], torch.float32, 128)


def test_rows_of_the_table_by_gpu():
    found = {name: launch_table.architecture(gpu) for name, gpu in GPUS.items()}
    assert found.pop('H100') == found.pop('B200') == 'sm_90' and set(found.values()) == {'sm_80'}


@pytest.mark.parametrize(
    'registers, warps, shared, programs',
    [(128, 4, 1, 4), (129, 4, 1, 3), (128, 8, 1, 2), (32, 4, 75, 3), (16, 1, 0, 64),
     (255, 16, 1, 1)],
)  # fmt: skip
def test_programs_that_a_gpu_holds(registers, warps, shared, programs):
    assert (
        launching._programs(launch_table.Config(64, warps, 2, registers, shared), GPUS['H100'])
        == programs
    )


@pytest.mark.parametrize(
    'heads, num_tokens, chunk',
    [(4, 100, 256), (4, 2000, 256), (4, 100_000, 768), (999, 4096, 4096)],
)
def test_chunks_on_a_gpu(monkeypatch, heads, num_tokens, chunk):
    """Four blocks at least, and as many chunks as the GPU holds programs at once."""
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda index: GPUS['H100'])
    tokens = launching.Tokens(1, heads, num_tokens, 64, (), torch.half, 0)
    assert tokens.chunk(launch_table.Config(64, 4, 3, 128, 0)) == chunk


def test_packed_images_are_a_batch_of_the_longest():
    q, images = torch.empty(1, 3, 960, 16), torch.empty(2, 4)
    for table, longest, found in ((None, 0, (1, 3, 960, 16)), (images, 720, (2, 3, 720, 16))):
        options = KernelOptions(0, longest, '', 'elu+1', 1e-6, True, False)
        launches = _Launches(launching.CallKey.of(options, q, q, q, None, table, None))
        assert launches.q[:4] == launches.k[:4] == found


@pytest.mark.parametrize('layer', [RALA, RWGKA])
def test_the_way_from_a_layer_to_a_launch_is_short(monkeypatch, clean, layer):
    """At most six files and twelve frames of the package."""
    seen = fake_gpu(monkeypatch, 'H100')
    with FakeTensorMode(), torch.device('cuda'):
        module = layer(embed_dims=192, num_heads=3)
        module(torch.empty(B, N, 192, requires_grad=True), HW)
    package = Path(launching.__file__).resolve().parents[2]
    for _, stack in seen:
        start = next(i for i, frame in enumerate(stack) if frame.name == 'forward')
        files = [Path(frame.filename) for frame in stack[start:]]
        ours = [file for file in files if package in file.resolve().parents]
        assert len(set(ours)) <= 6, sorted(set(ours))
        assert len(files) <= 12 + 3, [(frame.name, frame.filename) for frame in stack[start:]]
    assert seen


def test_parts_of_a_memory_are_the_same_by_address():
    shapes = [(2, 3, 17, 16), (2, 3), (2, 3), (2, 3, 5)]
    parts = launching.Memory(*shapes)
    memory, *tensors = parts.allocate(torch.empty(1), SimpleNamespace(compiled=None))
    assert [tuple(x.shape) for x in tensors] == shapes
    assert all((x.data_ptr() - memory.data_ptr()) % 64 == 0 for x in tensors)
    addresses = parts.parts(memory, SimpleNamespace(compiled='kernel'))
    assert addresses == [x.data_ptr() for x in tensors]
    for i, x in enumerate(tensors):
        x.fill_(i)
    assert all((x == i).all() for i, x in enumerate(tensors))  # none overlaps another


@pytest.mark.parametrize('call', CALLS)
def test_misaligned_tensors_are_specialised_at_every_launch(monkeypatch, clean, call):
    """A compiled kernel of aligned tensors would read the wrong addresses."""
    seen = fake_gpu(monkeypatch, 'H100')
    starts = []
    start = launching.start
    monkeypatch.setattr(launching, 'start', lambda *args: starts.append(args[1]) or start(*args))
    key = launching.CallKey.of
    monkeypatch.setattr(
        launching.CallKey, 'of', lambda *x, **saved: key(*x, **saved)._replace(aligned=False)
    )
    for _ in range(2):
        run(CALLS[call][1], torch.half, 64)
    assert len(starts) == len(seen) > 0
    # Triton would take an address for a number.
    assert all(isinstance(x, torch.Tensor) for tensors in starts for x in tensors)


def test_only_the_number_of_tokens_is_specialised(monkeypatch, clean):
    """Triton compiles for each kind of a number: 1, a multiple of 16, another one."""
    fake_gpu(monkeypatch, 'H100')
    start, kinds = launching.start, {}

    def record(launch, tensors):
        kernel = launch.kernel
        unspecialised = getattr(kernel, 'do_not_specialize', None)
        if unspecialised is None:  # an interpreted kernel keeps the arguments of its decorator
            unspecialised = kernel.kwargs['do_not_specialize'] or ()
        for name, size in zip(kernel.arg_names[len(tensors) :], launch.sizes):
            if isinstance(size, int) and name not in unspecialised:
                kind = 'one' if size == 1 else size % 16 == 0
                kinds.setdefault((kernel.__name__, name), set()).add(kind)
        return start(launch, tensors)

    monkeypatch.setattr(launching, 'start', record)
    for batch, heads, *hw in [(2, 3, 24, 40), (1, 1, 1, 1), (3, 16, 33, 57), (1, 2, 64, 16)]:
        with FakeTensorMode():
            qkv = torch.empty(batch, hw[0] * hw[1], 3, heads, 64, device='cuda')
            q, k, v = qkv.half().requires_grad_().permute(2, 0, 3, 1, 4).unbind(0)
            weights = q.new_empty(batch, heads, q.shape[2], 5)
            for outs in (
                [rala_attention(q, k, v, rotary=Rotary(tuple(hw), 64))],
                [random_walk_attention(q, k, v, *two(q, (heads, 64, 64)))],
                [ripple_attention(q, k, v, weights, hw_shape=hw)],
                adaptive_features(q, k, *learnt(q, 64)),
            ):
                outs[0].grad_fn.apply(*map(torch.empty_like, outs))
    assert len({kernel for kernel, _ in kinds}) > 8
    # Strides of channels are always 1, others multiples of 16.
    assert {name for (_, name), kind in kinds.items() if len(kind) > 1} == {'N'}


def test_sizes_of_numpy_are_launched_as_integers(monkeypatch, clean):
    """Triton refuses them, and launches that have them would serve the same sizes of Python."""
    fake_gpu(monkeypatch, 'H100')
    start, types = launching.start, set()

    def record(launch, tensors):
        types.update(map(type, (*launch.sizes, *launch.grid)))
        return start(launch, tensors)

    monkeypatch.setattr(launching, 'start', record)
    hw = tuple(np.array(HW))
    run(lambda q, k, v, o: rala_attention(q, k, v, rotary=Rotary(hw, 64), **o), torch.half, 64)
    run(
        lambda q, k, v, o: ripple_attention(q, k, v, q.new_empty(B, H, N, 5), hw_shape=hw, **o),
        torch.half, 64,
    )  # fmt: skip
    assert types == {int, float}


def test_launches_go_to_the_device_of_the_tensors(monkeypatch, clean):
    fake_gpu(monkeypatch, 'H100')
    entered = []
    monkeypatch.setattr(torch.cuda, 'current_device', lambda: 1)
    monkeypatch.setattr(torch.cuda, 'device', lambda index: entered.append(index) or nullcontext())
    run(CALLS['linear'][1], torch.half, 64)
    assert entered == [0, 0]  # forward and backward


@pytest.mark.parametrize('call', ['walk', 'ripple', 'adaptive'])
def test_parameters_of_another_dtype_have_their_own_launches(monkeypatch, clean, call):
    """As after autocast, and then ``model.bfloat16()``, in one process."""
    seen = fake_gpu(monkeypatch, 'H100')
    shapes, function = {
        'walk': ([(H, 49, 64)] * 2, random_walk_attention),
        'ripple': ([(B, H, N, 5)], partial(ripple_attention, hw_shape=HW)),
        'adaptive': (
            [(64, 64), (64, 128), (64,)],
            lambda q, k, v, *learnt: adaptive_features(q, k, *learnt),
        ),
    }[call]

    def with_parameters(q, k, v, _, dtype):
        return function(q, k, v, *(q.new_empty(size, dtype=dtype) for size in shapes))

    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        run(partial(with_parameters, dtype=dtype), torch.bfloat16, 64)
    assert seen

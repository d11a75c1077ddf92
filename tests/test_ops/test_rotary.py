import cmath
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mmlinattn.ops import Rotary, apply_rotary
from mmlinattn.ops.common import numerics
from mmlinattn.ops.common import rotary as module


def test_rotation_is_multiplication_by_a_complex_phase():
    height, width, d = 3, 4, 16
    x = torch.randn(height * width, d, dtype=torch.float64)
    turned = apply_rotary(x, Rotary((height, width), d))
    axes = Rotary((height, width), d).axes(torch.float32)
    for i in range(height):
        for j in range(width):
            for pair in range(d // 2):
                t, place, at = (pair, i, i) if pair < d // 4 else (pair - d // 4, j, height + j)
                phase = cmath.exp(1j * place * 10000 ** (-t / (d / 4 - 1)))
                z = complex(*x[i * width + j, 2 * pair : 2 * pair + 2]) * phase
                got = complex(*turned[i * width + j, 2 * pair : 2 * pair + 2])
                assert abs(z - got) < 1e-12
                assert abs(complex(*axes[:, at, t]) - phase) < 1e-6
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(Rotary((height, width), d).axes(dtype), axes.half())


def test_strides_that_no_complex_number_has():
    x = torch.randn(6, 9)
    for part in (x[:, :8], x[:, 1:], x.flatten()[:53].as_strided((6, 8), (8, 1), 3)):
        turned = apply_rotary(part, Rotary((2, 3), 8))
        torch.testing.assert_close(turned, apply_rotary(part.clone(), Rotary((2, 3), 8)))


@pytest.mark.parametrize('dtype, error', [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_half_types_and_their_gradients(dtype, error):
    rotary = Rotary((3, 4), 8)
    x = torch.randn(2, 3, 12, 8, dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    turned, expected = apply_rotary(x, rotary), apply_rotary(exact, rotary)
    grad = torch.randn_like(turned)
    found = torch.autograd.grad(turned, x, grad)[0]
    torch.testing.assert_close(turned.double(), expected, rtol=0, atol=error)
    expected = torch.autograd.grad(expected, exact, grad.double())[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=error)


@pytest.mark.parametrize(
    'rotary',
    [Rotary((2, 3), 8), Rotary((1, 4), 8, 10000.0, 2), Rotary((2, 3), 6, num_heads=2)],
)
def test_form_of_half_types(rotary, monkeypatch):
    """In float64, where it must equal the rotation by complex numbers, with all derivatives."""
    x = torch.randn(2, 2, 6, rotary.head_dim, dtype=torch.float64, requires_grad=True)
    expected = apply_rotary(x, rotary)
    monkeypatch.setattr(module, 'HALF_TYPES', (torch.float64,))
    called = []
    monkeypatch.setattr(module, 'turn', lambda *args: called.append(args))
    torch.testing.assert_close(apply_rotary(x, rotary), expected, rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, rotary), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: apply_rotary(x, rotary), x)
    assert not called


def test_gradients_for_strides_that_no_complex_number_has():
    x = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x[:, 1:], Rotary((2, 3), 8)), x)


def test_head_dim_four_has_one_angle():
    angles = Rotary((2, 2), 4).angles(torch.float32)
    assert torch.isfinite(angles).all() and angles[1, 1, 1] == torch.sin(torch.tensor(1.0))


def test_half_tables_keep_large_positions_apart():
    rotary = Rotary((512, 1), 8)
    half, exact = rotary.angles(torch.float16), rotary.angles(torch.float64)
    assert (half.double() - exact).abs().max() < 1e-3


def test_tables_are_made_once_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(numerics, '_CONSTANTS', {})
    monkeypatch.setattr(numerics, '_MOST_BYTES', 100)
    first = Rotary((2, 3), 8).angles(torch.float32)
    assert Rotary((2, 3), 8).angles(torch.float32) is first
    others = [Rotary((2, 3), 8).axes(torch.float32), Rotary((3, 2), 8).angles(torch.float32)]
    others += [Rotary((2, 3), 8, 100.0).angles(torch.float32), Rotary((2, 3), 8).angles(torch.half)]
    assert not any(other is first for other in others)
    for size in range(1, 40):
        Rotary((size, 1), 8).angles(torch.float32)
    assert len(numerics._CONSTANTS) == 16
    assert Rotary((2, 3), 8).angles(torch.float32) is not first


def test_threads_share_the_tables(monkeypatch):
    """The cache once changed while another thread went through it."""
    monkeypatch.setattr(numerics, '_CONSTANTS', {})
    monkeypatch.setattr(numerics, '_MOST_BYTES', 2000)

    def ask(first):
        for size in range(first, first + 300):
            Rotary((size % 40 + 1, 2), 8).angles(torch.float32)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(ask, range(4))] == [None] * 4
    kept = sum(table.nbytes for table in numerics._CONSTANTS.values())
    assert len(numerics._CONSTANTS) <= 16 or kept <= 2000


def test_small_tables_are_few(monkeypatch):
    monkeypatch.setattr(numerics, '_CONSTANTS', {})
    for size in range(1, 300):
        Rotary((size, 1), 4).axes(torch.float32)
    assert len(numerics._CONSTANTS) == 256
    # A list, which has no hash, finds the table of its tuple.
    assert Rotary([299, 1], 4).axes(torch.float32) is Rotary((299, 1), 4).axes(torch.float32)
    assert (
        Rotary((9, 9), 4, augment=torch.ones(2, 2)).axes(torch.float32)
        is not [*numerics._CONSTANTS.values()][-1]
    )


def test_tables_that_a_cuda_graph_reads_are_kept(monkeypatch):
    """A replay reads the memory that was captured, also after 256 other sizes.

    Other streams have tables of their own, but a capture takes those of the stream before it.
    """
    for name in ('_CONSTANTS', '_CAPTURED'):
        monkeypatch.setattr(numerics, name, {})
    capturing, stream = False, 7
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: capturing)
    name = '_cuda_getCurrentRawStream'
    monkeypatch.setattr(torch._C, name, lambda index: (index, stream), raising=False)

    device, build = torch.device('cuda', 1), lambda size, _: torch.zeros(size)

    def table(size):
        return weakref.ref(numerics.constant(build, device, size))

    before = [table(1), table(2)]
    stream = 8
    assert table(1)() is not before[0]() and table(1)() is table(1)()
    stream, capturing = 9, True
    assert table(1)() is before[0]() and table(3)() is None
    stream, capturing = 7, False
    assert table(1)() is before[0]()
    for size in range(3, 300):
        table(size)
    assert before[0]() is not None and before[1]() is None


def test_a_device_without_an_index_is_the_current_one(monkeypatch):
    for name in ('_CONSTANTS', '_CAPTURED'):
        monkeypatch.setattr(numerics, name, {})
    current, build = 0, lambda size, _: torch.zeros(size)
    monkeypatch.setattr(torch.cuda, 'current_device', lambda: current)
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: False)
    # The default stream is 0 on every device.
    streams = {0: 0, 1: 0}.__getitem__
    monkeypatch.setattr(torch._C, '_cuda_getCurrentRawStream', streams, raising=False)
    found = numerics.constant(build, torch.device('cuda'), 3)
    assert numerics.constant(build, torch.device('cuda', 0), 3) is found
    current = 1
    assert numerics.constant(build, torch.device('cuda'), 3) is not found


def test_tables_of_an_inference_mode_serve_training(monkeypatch):
    monkeypatch.setattr(numerics, '_CONSTANTS', {})
    with torch.inference_mode():
        apply_rotary(torch.randn(6, 8), Rotary((2, 3), 8))
    x = torch.randn(6, 8, requires_grad=True)
    apply_rotary(x, Rotary((2, 3), 8)).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_tables_that_are_not_real_are_not_kept(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(numerics, '_CONSTANTS', {})
    with FakeTensorMode():
        assert apply_rotary(torch.randn(6, 8), Rotary((2, 3), 8)).shape == (6, 8)
    assert apply_rotary(torch.empty(6, 8, device='meta'), Rotary((2, 3), 8)).is_meta
    compiled = torch.compile(apply_rotary, fullgraph=True, backend='eager')
    x = torch.randn(6, 8)
    torch.testing.assert_close(compiled(x, Rotary((2, 3), 8)), apply_rotary(x, Rotary((2, 3), 8)))
    assert len(numerics._CONSTANTS) == 1


@pytest.mark.parametrize('dim', [2, 6, 10])
def test_head_dim_must_split_by_four(dim):
    from mmlinattn.ops import rala_attention

    q = torch.randn(1, 1, 4, dim)
    with pytest.raises(ValueError, match=f'rotary.head_dim must .* got {dim}'):
        rala_attention(q, q, q, rotary=Rotary((2, 2), dim))

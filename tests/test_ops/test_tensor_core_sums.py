"""Why float32 sums over tokens leave the tensor cores block by block (docs/design.md), emulated: a
tensor core cuts off, towards 0, what it adds to, here after each 8 products."""

import torch


def cut_off(x):
    """float64 to the next float32 towards 0."""
    near = x.float()
    past = near.double().abs() > x.abs()
    return near.where(~past, near.nextafter(torch.zeros_like(near))).double()


def tf32(x):
    """Rounded to the 10 bits of TF32."""
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()


def tensor_core(a, b, parts=3):
    """Sums of a * b (rows, n) by products of TF32 parts, with one accumulator."""
    total = torch.zeros(len(a), dtype=torch.float64)
    for x, y in zip(a.split(8, 1), b.split(8, 1)):
        high = tf32(x) * tf32(y)
        low = [tf32(x - tf32(x)) * tf32(y), tf32(x) * tf32(y - tf32(y))] if parts == 3 else []
        for product in (*low, high):
            total = cut_off(total + product.sum(1))
    return total


def error(found, a, b):
    exact = (a * b).sum(1)
    return float((found - exact).norm() / exact.norm())


def test_blocks_are_added_outside():
    a, b = torch.rand(2, 500, 1024).double()
    one_by_one, blocks = torch.zeros(2, 500)
    for j in range(1024):
        one_by_one = torch.addcmul(one_by_one, a[:, j].float(), b[:, j].float())
    for x, y in zip(a.split(64, 1), b.split(64, 1)):
        blocks = blocks + tensor_core(x, y).float()
    plain, outside = error(one_by_one, a, b), error(blocks, a, b)
    assert error(tensor_core(a, b), a, b) > 5e-6 > 10 * outside
    assert outside < 2 * plain


def test_one_product_of_tf32_is_not_float32():
    a, b = torch.randn(2, 500, 1024).double()
    assert error(tensor_core(a, b, parts=1), a, b) > 1e-4 > 3e-5 > error(tensor_core(a, b), a, b)

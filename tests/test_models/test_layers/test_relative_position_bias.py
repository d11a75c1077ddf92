"""Softmax attentions with relative position bias compared with definitions, pair by pair."""

import re

import pytest
import torch

from mmlinattn.models.layers import (
    BiasedSoftmaxAttention,
    RelativePositionBias,
    VisionLongformerAttention,
)

HEADS, DIM, HW = 2, 4, (4, 7)
EXTRA = 2


def definition(attn, x, mask, reach, window=None):
    """Compute the attention N x N, with bias and visibility per pair of tokens."""
    bias, extra = attn.relative, EXTRA
    places = [None] * extra + [(row, column) for row in range(HW[0]) for column in range(HW[1])]
    table = bias.table.view(2 * reach[0] + 1, 2 * reach[1] + 1, HEADS)

    def pair_bias(i, j):
        if i < extra and j < extra:
            return bias.between[:, i, j] if bias.between is not None else torch.zeros(HEADS)
        if i < extra or j < extra:
            if bias.extra is None:
                return torch.zeros(HEADS)
            return bias.extra[0, :, i] if i < extra else bias.extra[1, :, j]
        ways = [a - b for a, b in zip(places[i], places[j])]
        ways = [max(-most, min(most, way)) + most for way, most in zip(ways, reach)]
        return table[ways[0], ways[1]]

    def is_visible(i, j):
        if window is None or i < extra or j < extra:
            return True
        return all(abs(a // window - b // window) <= 1 for a, b in zip(places[i], places[j]))

    count = len(places)
    numbers = torch.stack([pair_bias(i, j) for i in range(count) for j in range(count)], -1)
    seen = torch.tensor([[is_visible(i, j) for j in range(count)] for i in range(count)])
    q, k, v = (t.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for t in attn.in_proj(x).chunk(3, -1))
    logits = q @ k.mT / DIM**0.5 + numbers.unflatten(-1, (count, count))
    logits = logits.masked_fill(~seen | mask[:, None, None], float('-inf'))
    return attn.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


CASES = {
    'whole map': (dict(map_size=HW, num_extra_tokens=EXTRA), (3, 6), None),
    'a smaller table': (dict(map_size=(3, 4), num_extra_tokens=EXTRA), (2, 3), None),
    'a larger table': (dict(map_size=9), (8, 8), None),
    'windows': (dict(window_size=2, num_extra_tokens=EXTRA), (3, 3), 2),
    'windows in one row': (dict(window_size=5), (9, 9), 5),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
def test_equals_its_definition(case):
    options, reach, window = case
    kind = BiasedSoftmaxAttention
    if window:
        kind, options = VisionLongformerAttention, dict(options, relative_bias=True)
    attn = kind(HEADS * DIM, HEADS, **options).double()
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter)
    count = EXTRA + HW[0] * HW[1]
    x = torch.randn(2, count, HEADS * DIM, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(2, count, dtype=torch.bool)
    mask[1, 3::4] = True
    out = attn(x, HW, key_padding_mask=mask, num_extra_tokens=EXTRA)
    expected = definition(attn, x, mask, reach, window)
    torch.testing.assert_close(out[~mask], expected[~mask])
    weight = torch.randn_like(out) * ~mask[..., None]
    inputs = [x, *attn.parameters()]
    for a, b in zip(*(torch.autograd.grad((o * weight).sum(), inputs) for o in (out, expected))):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_other_number_of_extra_tokens_raises():
    for attn in (
        BiasedSoftmaxAttention(8, 2, num_extra_tokens=1),
        VisionLongformerAttention(8, 2, relative_bias=True, num_extra_tokens=1),
    ):
        for given in (0, 2):
            with pytest.raises(ValueError, match=f'num_extra_tokens=1, got {given} extra'):
                attn(torch.randn(1, 6 + given, 8), (2, 3), num_extra_tokens=given)


@pytest.mark.parametrize('size', [0, (3, 0), (3,), (3, 4, 5), 3.5, (3, 4.0), True, '14'])
def test_bad_map_size(size):
    message = re.escape(f'(height, width); got {size!r}')
    with pytest.raises(ValueError, match=f'map_size must be a positive integer.*{message}'):
        BiasedSoftmaxAttention(8, 2, map_size=size)


@pytest.mark.parametrize('count', [-1, 1.5, '1', True])
def test_bad_number_of_extra_tokens(count):
    message = re.escape(f'num_extra_tokens must be an integer of at least 0, got {count!r}')
    for build in (
        lambda: RelativePositionBias(1, (1, 1), count),
        lambda: BiasedSoftmaxAttention(8, 2, num_extra_tokens=count),
        lambda: VisionLongformerAttention(8, 2, relative_bias=True, num_extra_tokens=count),
        lambda: VisionLongformerAttention(8, 2, num_extra_tokens=count),
    ):
        with pytest.raises(ValueError, match=message):
            build()


@pytest.mark.parametrize('reach', [(1,), (1, 2, 3), (1, -1), (1.0, 1)])
def test_bad_reach(reach):
    message = re.escape(f'reach must be two integers of at least 0, got {reach!r}')
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(1, reach)


def test_table_of_another_size_is_resized(capsys):
    bias, other = RelativePositionBias(1, (1, 3)), RelativePositionBias(1, (1, 1))
    down = torch.tensor([[0.0], [1], [2]]).expand(3, 3)  # increases with the row
    other.load_state_dict(dict(table=(down + 10 * down.T).reshape(9, 1)))
    bias.load_state_dict(dict(other.state_dict()))
    assert 'table is resized from 3x3 to 3x7' in capsys.readouterr().out
    table = bias.table.view(3, 7)
    torch.testing.assert_close(table[1] - table[0], torch.ones(7))
    # 3 positions interpolated to 7 without align_corners, clamped at both ends.
    expected = torch.tensor([0, 1 / 7, 4 / 7, 1, 10 / 7, 13 / 7, 2]) * 10
    torch.testing.assert_close(table[0], expected)


@pytest.mark.parametrize('heights', [(3, 5), (1, 13)])
def test_rows_and_columns_of_a_table_are_not_mixed(heights):
    """Load tables with the same pair_bias of entries, transposed or with other sides.

    They are resized, since the reach is saved.
    """
    rows, columns = heights
    source = RelativePositionBias(1, (rows, columns))
    target = RelativePositionBias(1, (columns, rows) if rows > 1 else (4, 4))
    assert source.table.shape == target.table.shape
    down = torch.linspace(0, 1, 2 * rows + 1)[:, None].expand(-1, 2 * columns + 1)
    state = dict(source.state_dict(), table=down.reshape(-1, 1))
    target.load_state_dict(dict(state))
    assert target.state_dict()['table_reach'].tolist() == list(target.reach)
    table = target.table.view(*(2 * most + 1 for most in target.reach))
    torch.testing.assert_close(table, table[:, :1].expand_as(table))  # increases with the row only
    assert table[0, 0] == 0 and table[-1, 0] == 1 and (table.diff(dim=0) > -1e-6).all()
    source.load_state_dict(state)
    assert torch.equal(source.table, state['table'])


def test_tables_without_reach_must_be_square(capsys):
    square, wide = RelativePositionBias(1, (4, 4)), RelativePositionBias(1, (3, 5))
    table = torch.randn(81, 1)
    square.load_state_dict(dict(table=table))
    assert torch.equal(square.table, table)
    square.load_state_dict(dict(table=torch.randn(25, 1)))
    assert 'table is resized from 5x5 to 9x9' in capsys.readouterr().out
    for size in (77, 81):
        with pytest.raises(ValueError, match=r'table has no table_reach.* reach \(3, 5\)'):
            wide.load_state_dict(dict(table=torch.zeros(size, 1)))


@pytest.mark.parametrize(
    ('shape', 'reach'),
    [
        ((80, 1), None), ((64, 1), None), ((9, 2), None), ((9,), None), ((), None),
        ((80, 1), (4, 4)), ((9, 1), (-2, -2)), ((9, 1), (1,)), ((9, 2), (1, 1)),
    ],
)  # fmt: skip
def test_invalid_table_raises(shape, reach):
    state = dict(table=torch.zeros(shape))
    if reach is not None:
        state['table_reach'] = torch.tensor(reach)
    with pytest.raises(ValueError, match=r'table has shape .* the model needs \(81, 1\)'):
        RelativePositionBias(1, (4, 4)).load_state_dict(state)

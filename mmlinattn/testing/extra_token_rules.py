"""Rules of extra tokens, such as a class token."""

from typing import Tuple

import torch
from torch import Tensor

from ..models.layers import BaseAttention
from .attention_case import CALLED, AttentionCase, rule
from .rules import compare, require


def _with_extra_tokens(case: AttentionCase) -> Tuple[Tensor, dict]:
    """Return tokens and arguments: a row of the map replaced by extra tokens."""
    height, width = case.hw_shape
    return case.tokens(), dict(hw_shape=(height - 1, width), num_extra_tokens=width)


def _supports_extra_tokens(attn: BaseAttention) -> bool:
    try:
        attn.check_extra_tokens(1)
    except ValueError:
        return False
    return True


@rule(
    'Extra tokens, such as a class token, work with padding, or raise an error that says that '
    'they are not supported.',
    'Split them off with layout.split_extra(x, dim) where code is for the map alone. If they make '
    'no sense, set supports_extra_tokens = False.',
    requires=CALLED,
)
def extra_tokens(case: AttentionCase) -> None:
    x, args = _with_extra_tokens(case)
    if not _supports_extra_tokens(case.attn):
        case.raises(ValueError, 'does not support extra tokens', x, **args)
        return
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[0, -5:] = mask[1, 0] = True
    expected = case.run(x.masked_fill(mask[..., None], 0), key_padding_mask=mask, **args)
    out = case.run(x.where(~mask[..., None], 9 * case.tokens()), key_padding_mask=mask, **args)
    found, wanted = (t.masked_fill(mask[..., None], 0) for t in (out, expected))
    compare(found, wanted, 'output of a real token for other content of padding')


@rule(
    'A token of the map depends on every extra token.',
    'Do not drop extra tokens from keys and values.',
    requires=(*CALLED, 'extra_tokens'),
)
def extra_tokens_as_keys(case: AttentionCase) -> None:
    x, args = _with_extra_tokens(case)
    if _supports_extra_tokens(case.attn):
        x.requires_grad_()
        out = case.run(x, **args)
        (of_x,) = torch.autograd.grad(out[:, -1].square().sum(), x)
        unread = (of_x[:, : args['num_extra_tokens']].abs().sum((0, 2)) == 0).nonzero()
        require(
            not len(unread), f'the last token ignores the extra tokens {unread.flatten().tolist()}'
        )


@rule(
    'An extra token depends on every token.',
    'Do not drop extra tokens from queries; let them read the whole map.',
    requires=(*CALLED, 'extra_tokens'),
)
def extra_tokens_as_queries(case: AttentionCase) -> None:
    x, args = _with_extra_tokens(case)
    if _supports_extra_tokens(case.attn):
        x.requires_grad_()
        out = case.run(x, **args)
        (of_x,) = torch.autograd.grad(out[:, : args['num_extra_tokens']].square().sum(), x)
        unread = (of_x.abs().sum((0, 2)) == 0).nonzero()
        require(not len(unread), f'extra tokens ignore the tokens {unread.flatten().tolist()}')


@rule(
    'Extra tokens have no position: their order changes nothing.',
    'Apply positions, convolutions and windows to layout.split_extra(x, dim)[1] alone.',
    requires=(*CALLED, 'extra_tokens'),
)
def extra_token_order(case: AttentionCase) -> None:
    x, args = _with_extra_tokens(case)
    if _supports_extra_tokens(case.attn):
        extra = args['num_extra_tokens']

        def flipped(t: Tensor) -> Tensor:
            return torch.cat([t[:, :extra].flip(1), t[:, extra:]], 1)

        expected = flipped(case.run(x, **args))
        compare(case.run(flipped(x), note='extra tokens reversed', **args), expected, 'output')

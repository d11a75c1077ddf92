"""Rules of errors, state dict, compilation and export of an attention."""

import re

import torch
from torch import Tensor, nn
from torch.export import Dim, export

from ..models.layers import BaseAttention, map_to_tokens, tokens_to_map
from .attention_case import CALLED, AttentionCase, rule
from .rules import compare, require


@rule(
    'Arguments that do not fit raise a ValueError or TypeError with the value.',
    'Call self.token_layout first if the class has its own forward().',
    requires=CALLED,
)
def argument_errors(case: AttentionCase) -> None:
    (height, width), n, x = case.hw_shape, case.num_tokens, case.tokens()
    case.raises(ValueError, str((height, width + 1)), x, (height, width + 1))
    case.raises(ValueError, str(n + 1), case.tokens(n + 1))
    for hw in ((height, float(width)), (height, width, 1, 1), 'rows'):
        case.raises(ValueError, repr(hw), x, hw)
    case.raises(ValueError, str(x.shape[-1] // 2), x[..., : x.shape[-1] // 2])
    case.raises(ValueError, str(n - 1), x, query_pos=x[:, 1:])
    mask = torch.zeros(2, n)
    case.raises(ValueError, str((2, n - 1)), x, key_padding_mask=mask[:, 1:].bool())
    case.raises(TypeError, 'bool', x, key_padding_mask=mask)


@rule(
    'A state dict loaded into a new layer gives the same output.',
    'Keep everything that the output depends on in parameters or persistent buffers '
    '(register_buffer), not in plain attributes.',
    requires=CALLED,
)
def state_dict(case: AttentionCase) -> None:
    x = case.tokens()
    expected, other = case.run(x), case.build()
    other.load_state_dict(case.attn.state_dict())
    compare(case.run(x, attn=other, note='in a new layer'), expected, 'output')


def _compile(case: AttentionCase, backend: str) -> None:
    torch.compiler.reset()
    x = case.tokens()
    expected = case.run(x, note=f'torch.compile(fullgraph=True, backend={backend!r})')
    compiled = torch.compile(case.clone(torch.float64), fullgraph=True, backend=backend)
    compare(compiled(x, case.hw_shape), expected, 'compiled output', 1e-7, 1e-9)


@rule(
    'torch.compile(fullgraph=True) captures the layer in one graph.',
    'No branch on values of a tensor, no .item(), .tolist(), print() or numpy in forward().',
    requires=CALLED,
)
def compiles(case: AttentionCase) -> None:
    _compile(case, 'eager')


@rule(
    'torch.compile(fullgraph=True) captures the backward pass.',
    'Use operations of torch that AOTAutograd traces, or register a custom operator with '
    'register_autograd.',
    requires=(*CALLED, 'compiles'),
)
def compiles_for_training(case: AttentionCase) -> None:
    # No gradients of this backend: torch 2.11 expects wrong strides of elu's backward pass in it.
    _compile(case, 'aot_eager')


class _OnMap(nn.Module):
    """Attention on a map (B, C, H, W), as a backbone exports it."""

    def __init__(self, attn: BaseAttention) -> None:
        super().__init__()
        self.attn = attn.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hw_shape = (x.shape[2], x.shape[3])
        return tokens_to_map(self.attn(map_to_tokens(x), hw_shape), hw_shape)


@rule(
    'torch.export captures the layer with any batch, height and width, or, with '
    'any_export_size=False in info, says that it cannot and captures one size. '
    'Checked from torch 2.7 on.',
    'No int() of height and width, no branch on them. Where it must, call '
    'require_static_size(name, hw_shape, reason) and set any_export_size=False in info.',
    requires=(*CALLED, 'info'),
)
def exports(case: AttentionCase) -> None:
    if not hasattr(torch.compiler, 'is_exporting'):
        return
    any_size = bool(case.attn.info and case.attn.info.any_export_size)
    model, channels = _OnMap(case.clone(torch.float64)), case.attn.embed_dims
    sizes = ((3, 12, 20), (1, 9, 14), (2, 5, 31))
    maps = [torch.randn(b, channels, h, w, dtype=torch.float64) for b, h, w in sizes]
    dims = {
        i: Dim(name, min=low, max=4096) for i, name, low in ((0, 'b', 1), (2, 'h', 4), (3, 'w', 4))
    }
    case.given = f'map {tuple(maps[0].shape)} with dynamic batch, height and width'
    try:
        program = export(model, (maps[0],), dynamic_shapes=(dims,)).module()
    except ValueError as error:
        if any_size or not re.search('dynamic height', str(error)):
            raise
        maps = maps[:1]
        case.given = f'map {tuple(maps[0].shape)} at a fixed size'
        program = export(model, (maps[0],)).module()
    else:
        require(any_size, 'it exports with dynamic sizes, but info has any_export_size=False')
    for x in maps:
        compare(program(x), model(x), f'exported output for {tuple(x.shape)}', dims=())

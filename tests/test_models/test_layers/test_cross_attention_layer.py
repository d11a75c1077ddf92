"""LinearCrossAttention: N x M definitions, masks, the interface of mmcv's MultiheadAttention."""

import pytest
import torch
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import MultiheadAttention

from mmlinattn.models.layers import BaseAttention, LinearCrossAttention, registered_subclasses

C, HEADS, N, M = 32, 4, 5, 9
KINDS = [name for name, cls in registered_subclasses(BaseAttention).items() if cls.cross_values]


def test_the_attention_by_default():
    assert type(LinearCrossAttention(C, HEADS).attn).__name__ == 'MALA'


def build(attn_cfg='RALA', **options):
    torch.manual_seed(0)
    return LinearCrossAttention(C, HEADS, attn_cfg, **options).double().eval()


def inputs(n=N, m=M):
    shapes = [(2, n, C), (2, m, C), (2, m, C), (2, n, C), (2, m, C)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def groups_mask():
    """Two groups of three queries, which see themselves and the last four, as in DINO."""
    mask = torch.zeros(10, 10, dtype=torch.bool)
    mask[:3, 3:6] = mask[3:6, :3] = mask[6:, :6] = True
    return mask


def test_softmax_equals_mmcv_with_padding_and_masks():
    ours = build('SoftmaxAttention')
    theirs = MultiheadAttention(C, HEADS, batch_first=True).double().eval()
    theirs.attn.in_proj_weight.data = ours.attn.in_proj.weight.data
    theirs.attn.in_proj_bias.data = torch.randn(3 * C).double()
    ours.attn.in_proj.bias.data = theirs.attn.in_proj_bias.data
    theirs.attn.out_proj.load_state_dict(ours.attn.proj.state_dict())
    query, key, value, query_pos, key_pos = inputs()
    padding = torch.arange(M).expand(2, M) >= torch.tensor([[M], [4]])
    for options in (
        dict(),
        dict(query_pos=query_pos, key_pos=key_pos, key_padding_mask=padding),
        dict(identity=query_pos),
        dict(attn_mask=torch.arange(M)[None] > torch.arange(N)[:, None] + 2),
    ):
        out = ours(query, key, value, **options)
        torch.testing.assert_close(out, theirs(query, key, value, **options))
    query = torch.randn(2, 10, C).double()
    options = dict(query_pos=torch.randn(2, 10, C).double(), attn_mask=groups_mask())
    torch.testing.assert_close(ours(query, **options), theirs(query, **options))


def rala_by_weights(attn, query, key, value, padding):
    """RALA's definition with an N x M matrix of weights."""
    weights, biases = attn.in_proj.weight.chunk(3), attn.in_proj.bias.chunk(3)
    q, k, v = (
        (x @ w.T + b).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases)
    )
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    real = (~padding).double()[:, None]
    count = real.sum(-1, keepdim=True)
    scores = torch.einsum('bhd,bhmd->bhm', q.mean(2), k) * (C / HEADS) ** -0.5
    alpha = scores.exp() * real
    alpha = count * alpha / alpha.sum(-1, keepdim=True)
    matrix = q @ k.mT * alpha[:, :, None] / count[..., None]
    out = matrix / (matrix.sum(-1, keepdim=True) + 1e-6) @ v
    return attn.proj(out.transpose(1, 2).flatten(2))


def test_rala_and_its_gradients_by_weights():
    layer = build('RALA')
    leaves = query, key, value, query_pos, key_pos = inputs()
    padding = torch.arange(M).expand(2, M) >= torch.tensor([[M], [4]])
    out = layer(*leaves[:3], query_pos=query_pos, key_pos=key_pos, key_padding_mask=padding)
    expected = query + rala_by_weights(layer.attn, query + query_pos, key + key_pos, value, padding)
    torch.testing.assert_close(out, expected)
    leaves = [*leaves, layer.attn.in_proj.weight, layer.attn.proj.weight]
    grad = torch.randn_like(out)
    torch.testing.assert_close(*(torch.autograd.grad(x, leaves, grad) for x in (out, expected)))


@pytest.mark.parametrize('kind', KINDS)
def test_every_attention(kind):
    layer = build(kind)
    leaves = query, key, value, query_pos, key_pos = inputs()
    padding = torch.arange(M).expand(2, M) >= torch.tensor([[M], [6]])
    options = dict(query_pos=query_pos)
    out = layer(query, key, value, key_pos=key_pos, key_padding_mask=padding, **options)
    # Padding has no effect, and every real token has one.
    alone = [x[1:, :6] for x in (key, value, key_pos)]
    short = layer(query[1:], *alone[:2], key_pos=alone[2], query_pos=query_pos[1:])
    torch.testing.assert_close(out[1:], short)
    grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
    used = grads[:2] if kind == 'AdditiveAttention' else grads[:3]
    assert all((g[0].abs().sum(-1) > 0).all() for g in used)
    assert not used[1][1, 6:].any()
    # A mask of groups is the attention of each group alone.
    query, mask = torch.randn(2, 10, C).double(), groups_mask()
    out = layer(query, attn_mask=mask)
    for rows in (slice(0, 3), slice(3, 6), slice(6, 10)):
        keys = query[:, ~mask[rows.start]]
        torch.testing.assert_close(out[:, rows], layer(query[:, rows], keys, key_pos=None))


def test_refusals_say_why():
    layer = build()
    query = torch.randn(2, N, C).double()
    with pytest.raises(ValueError, match='as the masked cross-attention of Mask2Former does'):
        layer(query, attn_mask=torch.zeros(2 * HEADS, N, N, dtype=torch.bool))
    with pytest.raises(ValueError, match='linear attention has no logits to add numbers to'):
        layer(query, attn_mask=torch.zeros(N, N))
    key = torch.randn(2, 9, C).double()
    for args, message in (
        ((query[0],), r'query must have shape \(5, tokens, '),
        ((query, key[..., 1:]), r'key must have shape \(2, tokens, .*, got \(2, 9'),
        ((query, key[:1]), r'key must have .*, got \(1, 9'),
        ((query, key, key[:, 1:]), 'value has 8 tokens, key has 9'),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*args)
    many = torch.randn(2, 130, C).double()
    with pytest.raises(ValueError, match='130 different rows.* at most 128'):
        layer(many, attn_mask=torch.ones(130, 130, dtype=torch.bool).triu(1))
    with pytest.raises(ValueError, match='WindowAttention needs queries and keys of one map'):
        build('WindowAttention')
    with pytest.raises(ValueError, match='cross-attention has no rotary'):
        build(dict(type='MALA', rotary=True))
    with pytest.raises(ValueError, match='cross-attention has no position'):
        build(dict(type='LinearAttention', position='RotaryPosition'))
    for name, value in dict(embed_dims=8, num_heads=8, proj_drop=0.1).items():
        with pytest.raises(ValueError, match=f'attn_cfg must not have {name}, .* got .*MALA'):
            build(dict(type='MALA', **{name: value}))
    with pytest.raises(ValueError, match=r'attn_drop must be 0, got 0\.1'):
        build(attn_drop=0.1)
    with pytest.raises(ValueError, match='batch_first must be True'):
        build(batch_first=False)


def test_ignored_and_empty_masks():
    query = torch.randn(2, N, C).double()
    expected = build()(query)
    mask = torch.ones(2 * HEADS, N, N, dtype=torch.bool)
    torch.testing.assert_close(build(ignore_attn_mask=True)(query, attn_mask=mask), expected)
    layer = build()
    none = torch.zeros(N, N, dtype=torch.bool)
    none[0] = True
    out = layer(query, attn_mask=none)
    torch.testing.assert_close(out[:, 0], query[:, 0] + layer.attn.proj.bias)
    torch.testing.assert_close(out[:, 1:], layer(query[:, 1:], query))
    additive = build('AdditiveAttention')  # adds the queries after its projection
    q = additive.attn.project_parts((query, 1))[0]
    out = additive(query, attn_mask=none)[:, 0]
    torch.testing.assert_close(out, (query + additive.attn.proj.bias + q)[:, 0])


def test_rows_split_the_mean_query_of_rala_and_additive():
    query, mask = torch.randn(2, N, C).double(), torch.zeros(N, N, dtype=torch.bool)
    other = mask.clone()
    other[2, 0] = True
    for kind in KINDS:
        layer = build(kind)
        same = torch.allclose(
            layer(query, attn_mask=mask)[:, 0], layer(query, attn_mask=other)[:, 0]
        )
        assert same == (kind not in ('RALA', 'AdditiveAttention')), kind


def test_dropout_is_on_the_output():
    query, drop = torch.randn(2, N, C).double(), dict(type='Dropout', drop_prob=1.0)
    for options in (dict(dropout=1.0), dict(proj_drop=1.0), dict(dropout_layer=drop)):
        torch.testing.assert_close(build(**options).train()(query), query)
    overridden = build(dropout_layer=drop, dropout=0.0).train()  # as in mmcv
    assert (overridden(query) != query).all()
    path = build(dropout_layer=dict(type='DropPath', drop_prob=0.2)).dropout[1]
    assert isinstance(path, DropPath) and path.drop_prob == 0.2

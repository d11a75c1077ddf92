"""Tests of every attention: shapes, padding, positions, precision, errors."""

import pytest
import torch
from mmengine.registry import DefaultScope

from mmlinattn.models.layers import (
    RALA,
    RWGKP,
    AdditiveAttention,
    BaseAttention,
    ConvProjectionAttention,
    EnhancedLinearAttention,
    HydraAttention,
    LinearAngularAttention,
    RippleAttention,
    SpatialReductionAttention,
    WindowAttention,
    build_attention,
)
from mmlinattn.models.layers.positions import RotaryPosition

ATTENTIONS = {
    'softmax': dict(type='SoftmaxAttention'),
    'softmax-ravlt': dict(type='SoftmaxAttention', rotary=True, lepe=5, gate='proj'),
    'rala': dict(type='RALA'),
    'rala-no-aug': dict(type='RALA', kv_augmentation=None, gate=None, lepe=0, rotary=False),
    'rala-learnable': dict(type='RALA', kv_augmentation='learnable', num_tokens=30),
    'rala-identity-relu': dict(type='RALA', gate='identity', feature_map='relu'),
    'rala-tanh-softmax': dict(type='RALA', gate='tanh', feature_map='softmax', qkv_bias=False),
    'additive': dict(type='AdditiveAttention'),
    'additive-own-value': dict(type='AdditiveAttention', share_value=False, gate='proj', lepe=3),
    'efficient': dict(type='SpatialReductionAttention', sr_ratio=2),
    'rwgka': dict(type='RWGKA', num_anchors=6),
    'rwgka-two-sets': dict(type='RWGKA', num_anchors=6, shared_anchors=False, decay=0.9, lepe=3),
    'rwgka-one-step': dict(type='RWGKA', num_anchors=6, steps=1, heads_multiplier=2),
    'rwgka-projected': dict(type='RWGKA', num_anchors=6, project_anchors=True),
    'slinear': dict(type='SlinearAttention'),
    'slinear-unlimited': dict(type='SlinearAttention', steps=None, decay=0.5, lepe=3),
    'rwgkp': dict(type='RWGKP', num_anchors=6, solver='solve'),
    'rwgkp-two-steps': dict(type='RWGKP', num_anchors=6, steps=2, rotary=True, gate='proj'),
    'linear': dict(type='LinearAttention'),
    'linear-elu': dict(type='LinearAttention', feature_map='elu+1', rotary=True),
    'linear-efficient': dict(type='LinearAttention', feature_map='EfficientFeatures'),
    'linear-performer': dict(type='LinearAttention', feature_map='PerformerFeatures'),
    'linear-rfa': dict(type='LinearAttention', feature_map='RFAFeatures'),
    'linear-t2r': dict(type='LinearAttention', feature_map='T2RFeatures'),
    'linear-dpfp': dict(type='LinearAttention', feature_map=dict(type='DPFPFeatures', order=3)),
    'ripple': dict(type='RippleAttention'),
    'ripple-sat': dict(type='RippleAttention', backend='sat', max_distance=2, threshold=0.01),
    'ripple-log': dict(type='RippleAttention', groups='log', max_distance=2),
    'ripple-fixed': dict(type='RippleAttention', weights='fixed', feature_map='elu+1'),
    'ripple-softmax': dict(type='RippleAttention', weights='softmax', lepe=3, gate='proj'),
    'ripple-truncated': dict(type='RippleAttention', weights='truncated', eps=1e-12),
    'ripple-naive': dict(type='RippleAttention', backend='naive', max_distance=2),
    'softmax-ripple': dict(type='RippleAttention', similarity='softmax'),
    'softmax-ripple-truncated': dict(
        type='RippleAttention', similarity='softmax', weights='truncated', max_distance=2
    ),
    'linear-rotary': dict(type='LinearAttention', position='RotaryPosition'),
    'linear-permuted': dict(type='LinearAttention', position='PermutationPosition'),
    'linear-sine': dict(type='LinearAttention', position='SineSPE', feature_map='elu+1'),
    'linear-conv': dict(
        type='LinearAttention', position=dict(type='ConvSPE', kernel_size=3, num_realizations=24)
    ),
    'shen': dict(type='EfficientAttention'),
    'hydra': dict(type='HydraAttention'),
    'angular': dict(type='LinearAngularAttention'),
    'angular-paper': dict(type='LinearAngularAttention', form='paper', lepe=0),
    'enhanced': dict(type='EnhancedLinearAttention', scales=(3, 5)),
    'focused': dict(type='FocusedLinearAttention'),
    'focused-learned-position': dict(
        type='FocusedLinearAttention', position=dict(type='LearnedKeyPosition', map_size=(4, 9))
    ),
    'nystrom': dict(type='NystromAttention', num_landmarks=4),
    'gated': dict(type='GatedPositionalAttention'),
    'conv-projection': dict(type='ConvProjectionAttention'),
    'conv-projection-no-stride': dict(type='ConvProjectionAttention', kv_stride=1),
    'longformer': dict(type='VisionLongformerAttention', window_size=2),
    'longformer-relative': dict(
        type='VisionLongformerAttention', window_size=2, relative_bias=True
    ),
    'relative': dict(type='BiasedSoftmaxAttention', map_size=(4, 9)),
    'window': dict(type='WindowAttention'),
    'window-shifted': dict(type='WindowAttention', window_size=3, shift=True, gate='proj'),
}
RIPPLE_WEIGHTS = ('ripple-log', 'ripple-fixed', 'ripple-softmax', 'ripple-truncated')
HW = (5, 6)


@pytest.fixture(params=ATTENTIONS.values(), ids=ATTENTIONS.keys())
def attn(request) -> BaseAttention:
    return build_attention(request.param, embed_dims=32, num_heads=2).double().eval()


def tokens(batch=2, n=30, c=32):
    return torch.randn(batch, n, c, dtype=torch.float64)


def test_all_registered_attentions_are_tested():
    from mmengine.registry import MODELS

    names = {
        name
        for name, cls in MODELS.module_dict.items()
        if isinstance(cls, type) and issubclass(cls, BaseAttention)
    }
    assert names == {cfg['type'] for cfg in ATTENTIONS.values()}


def test_shape_and_gradients_of_all_parameters(attn):
    x = tokens().requires_grad_()
    out = attn(x, HW)
    assert out.shape == x.shape and out.dtype == x.dtype
    (out**2).sum().backward()
    assert x.grad.abs().sum() > 0
    for name, parameter in attn.named_parameters():
        if name == 'in_proj.bias':
            continue  # the bias of the keys cancels in the softmax
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_query_pos_changes_queries_and_keys_but_not_values(attn):
    x, pos = tokens(), tokens()
    assert not torch.allclose(attn(x, HW, query_pos=pos), attn(x, HW))
    torch.testing.assert_close(attn(x, HW, query_pos=torch.zeros_like(x)), attn(x, HW))
    # If all values are equal, an attention without local position returns them for any position
    # of queries and keys. Exceptions: the first two multiply the values, the next two have zero
    # padding for convolutions, and the last has weights of rotated features, which do not sum
    # to 1.
    others = (
        AdditiveAttention, HydraAttention, EnhancedLinearAttention, ConvProjectionAttention
    )  # fmt: skip
    averages = not isinstance(attn, others) and attn.lepe is None and attn.gate is None
    turned = attn.rotary or isinstance(getattr(attn, 'position', None), RotaryPosition)
    if averages and not turned:
        same = tokens(n=1).expand(2, 30, 32)
        torch.testing.assert_close(
            attn(same, HW, query_pos=pos), attn(same, HW), rtol=1e-5, atol=1e-6
        )


def is_permutation_equivariant(cfg: dict) -> bool:
    """Return True if an attention with these options ignores positions."""
    attn = build_attention(cfg, embed_dims=32, num_heads=2)
    # These use positions only with some options, which are checked below.
    of_map = type(attn).info.needs_map and not isinstance(attn, (RALA, LinearAngularAttention))
    parts = (attn.lepe, getattr(attn, 'position', None), getattr(attn, 'token_logits', None))
    return not (of_map or attn.rotary or any(part is not None for part in parts))


PLACELESS = [name for name, cfg in ATTENTIONS.items() if is_permutation_equivariant(cfg)]


def test_is_permutation_equivariant():
    assert {'softmax', 'linear', 'rwgka', 'shen', 'hydra', 'angular-paper'} < set(PLACELESS)
    assert not {'rala', 'rwgkp', 'ripple', 'linear-rotary', 'window'} & set(PLACELESS)


@pytest.mark.parametrize('name', PLACELESS)
def test_permutation_of_tokens(name):
    """Test that a permutation of the tokens permutes the outputs."""
    attn = build_attention(ATTENTIONS[name], embed_dims=32, num_heads=2).double().eval()
    x, order = tokens(), torch.randperm(30)
    mask = torch.zeros(2, 30, dtype=torch.bool)
    mask[1, 20:] = True
    out = attn(x, HW, key_padding_mask=mask)[:, order]
    torch.testing.assert_close(attn(x[:, order], (6, 5), key_padding_mask=mask[:, order]), out)


def test_padded_rows_do_not_change_real_tokens(attn):
    if getattr(attn, 'token_logits', None) is not None:
        pytest.skip('one learnt weight a position: another number of tokens is another layer')
    if isinstance(attn, (SpatialReductionAttention, RWGKP, WindowAttention)):
        pytest.skip('reads the map in cells, which another size of the padded map divides anew')
    x = tokens()
    junk = 9 * tokens(n=12)
    mask = torch.zeros(2, 42, dtype=torch.bool)
    mask[:, 30:] = True
    # Two rows of padding below the 5 x 6 map do not change the position of real tokens.
    beside = attn(torch.cat([x, junk], 1), (7, 6), key_padding_mask=mask)[:, :30]
    torch.testing.assert_close(beside, attn(x, HW), rtol=1e-9, atol=1e-9)


def test_content_of_padding_does_not_change_real_tokens(attn):
    x, junk = tokens(), 9 * tokens()
    mask = torch.zeros(2, *HW, dtype=torch.bool)
    mask[0, 3:], mask[1, :, 4:] = True, True
    mask = mask.flatten(1)
    outs = [
        attn(x.where(~mask[..., None], filled), HW, key_padding_mask=mask)[~mask]
        for filled in (junk, torch.zeros_like(junk))
    ]
    torch.testing.assert_close(*outs, rtol=1e-9, atol=1e-9)


def test_padding_only_is_finite(attn):
    mask = torch.tensor([[True] * 30, [False] * 30])
    x = tokens().requires_grad_()
    out = attn(x, HW, key_padding_mask=mask)
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


# Gradients of feature maps with a ReLU have a larger tolerance: rounding switches the ReLU.
@pytest.mark.parametrize(
    'dtype, tolerance, of_gradient', [(torch.bfloat16, 1e-2, 0.2), (torch.float16, 2e-3, 0.05)]
)
def test_autocast_is_close_to_float32(attn, dtype, tolerance, of_gradient):
    attn, x = attn.float(), tokens().float().requires_grad_()
    exact, weight = attn(x, HW), torch.randn(2, 30, 32)
    inputs = [x, *attn.parameters()]
    (of_x, *_) = torch.autograd.grad((exact * weight).sum(), inputs)
    with torch.autocast('cpu', dtype=dtype):
        out = attn(x, HW)
    gradients = torch.autograd.grad((out.float() * weight).sum(), inputs)
    assert out.dtype == dtype
    assert (out.float() - exact).norm() / exact.norm() < tolerance
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert (gradients[0] - of_x).norm() / of_x.norm() < of_gradient


@pytest.mark.parametrize('hw', [(1, 1), (1, 7), (3, 1)])
def test_odd_maps(attn, hw):
    if getattr(attn, 'token_logits', None) is not None:
        pytest.skip('one learnt weight a position: another number of tokens is another layer')
    assert torch.isfinite(attn(tokens(n=hw[0] * hw[1]), hw)).all()


# Other kinds of ripple weights add few nodes to the same large graph.
@pytest.mark.parametrize(
    'attn',
    [cfg for name, cfg in ATTENTIONS.items() if name not in RIPPLE_WEIGHTS],
    ids=[name for name in ATTENTIONS if name not in RIPPLE_WEIGHTS],
    indirect=True,
)
def test_compiles_without_graph_breaks(attn, needs_to_compile):
    if isinstance(attn, RippleAttention):
        needs_to_compile('ripple attention')
    torch.compiler.reset()  # all attentions share one forward, which is compiled 8 times at most
    x = tokens()
    compiled = torch.compile(attn, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(x, HW), attn(x, HW))


@pytest.mark.parametrize(
    'args, kwargs, error, message',
    [
        ((tokens(), (5, 7)), {}, ValueError, r'hw_shape=\(5, 7\) has 35 positions .* 30 tokens'),
        ((tokens(n=31), HW), {}, ValueError, '31 tokens; a class token'),
        ((tokens(), (5, 6.0)), {}, ValueError, r'hw_shape must be two integers, got \(5, 6.0\)'),
        ((tokens(), None), {}, ValueError, r'hw_shape must be \(H, W\), got None'),
        ((tokens(), (5, 6, 1)), {}, ValueError, r'hw_shape must be \(H, W\), got \(5, 6, 1\)'),
        ((tokens(c=16), HW), {}, ValueError, r'x must have shape \(B, N, 32\)'),
        ((tokens(), HW), dict(query_pos=tokens(n=29)), ValueError, 'query_pos .*29'),
        (
            (tokens(), HW),
            dict(key_padding_mask=torch.zeros(2, 29, dtype=torch.bool)),
            ValueError,
            r'\(2, 30\), got \(2, 29\)',
        ),
        ((tokens(), HW), dict(key_padding_mask=torch.zeros(2, 30)), TypeError, 'must be bool'),
    ],
)
def test_bad_calls(attn, args, kwargs, error, message):
    with pytest.raises(error, match=message):
        attn(*args, **kwargs)


@pytest.mark.parametrize(
    'cfg, dims, heads, error, message',
    [
        ('RALA', 30, 4, ValueError, 'embed_dims=30 .* num_heads=4'),
        ('RALA', 12, 2, ValueError, 'embed_dims / num_heads must .* got 6'),
        (dict(type='RALA', gate='relu'), 32, 2, ValueError, "gate .*'relu'"),
        (dict(type='RALA', lepe=4), 32, 2, ValueError, 'lepe .* 4'),
        (dict(type='RALA', feature_map='exp'), 32, 2, ValueError, "'exp'"),
        (dict(type='RALA', kv_augmentation='yes'), 32, 2, ValueError, "'yes'"),
        (dict(type='RALA', kv_augmentation='learnable'), 32, 2, ValueError, 'num_tokens=None'),
        (dict(type='RALA', num_tokens=9), 32, 2, ValueError, 'num_tokens=9'),
        (dict(type='RALA', num_anchors=9), 32, 2, TypeError, 'RALA rejects attn_cfg=.*num_anchors'),
        (dict(type='RALA', lepe='5'), 32, 2, TypeError, "RALA rejects attn_cfg=.*'lepe': '5'"),
        (dict(type='RALA', backend='tile'), 32, 2, ValueError, "backend must be .*got 'tile'"),
        (dict(type='SoftmaxAttention', backend='triton'), 32, 2, ValueError, "got 'triton'"),
        (
            dict(num_anchors=9),
            32,
            2,
            TypeError,
            "attn_cfg must have a Base.* got {'num_anchors': 9}",
        ),
        (
            'AdaptiveFeatures',
            32,
            2,
            TypeError,
            "attn_cfg must have a Base.* got 'AdaptiveFeatures'",
        ),
        (None, 32, 2, TypeError, 'attn_cfg must have a BaseAttention .* got None'),
        (dict(type='LinearAttention', feature_map='exp'), 32, 2, ValueError, "'exp'"),
        (dict(type='RippleAttention', max_distance=-1), 32, 2, ValueError, 'max_distance .* -1'),
        (dict(type='RippleAttention', max_distance=2.5), 32, 2, ValueError, 'max_distance .* 2.5'),
        (dict(type='RippleAttention', weights='linear'), 32, 2, ValueError, "'linear'"),
        (dict(type='RippleAttention', groups='l1'), 32, 2, ValueError, "groups .*'l1'"),
        (dict(type='RippleAttention', threshold=-1), 32, 2, ValueError, 'threshold .* -1'),
        (
            dict(type='RippleAttention', groups='log', backend='tile'),
            32,
            2,
            ValueError,
            "'tile' needs groups='chebyshev'",
        ),
        ('RALLA', 32, 2, KeyError, "'RALLA' is not registered; did you mean RALA"),
    ],
)
def test_bad_options(cfg, dims, heads, error, message):
    with pytest.raises(error, match=message):
        build_attention(cfg, dims, heads)


@pytest.mark.parametrize(
    'kind', ['ConvProjectionAttention', 'SpatialReductionAttention', 'EnhancedLinearAttention']
)
def test_unsupported_options_raise(kind):
    for name, value in (('rotary', True), ('lepe', 3), ('gate', 'proj')):
        with pytest.raises(ValueError, match=f'{kind} does not support {name}, got {value!r}'):
            build_attention(dict(type=kind, **{name: value}), 32, 2)
    backend = 'torch' if kind == 'EnhancedLinearAttention' else 'auto'
    assert build_attention(dict(type=kind, backend=backend, qkv_bias=False), 32, 2)


def test_learnable_token_weights_raise_for_another_map():
    attn = build_attention(ATTENTIONS['rala-learnable'], 32, 2)
    with pytest.raises(ValueError, match='num_tokens=30, the map has 20'):
        attn(torch.randn(1, 20, 32), (4, 5))


def test_config_overrides_embed_dims_and_num_heads():
    assert build_attention(dict(type='RALA', num_heads=4), 32, num_heads=2).num_heads == 4


def test_attention_registered_in_a_framework():
    mmseg = pytest.importorskip('mmseg.registry', reason='MMSegmentation comes with "seg"')
    kind = type('OfUser', (BaseAttention,), dict(__module__='mmseg.of_user'))
    mmseg.MODELS.register_module(module=kind)
    try:
        with DefaultScope.overwrite_default_scope('mmseg'):
            assert type(build_attention('OfUser', 32, 2)) is kind
    finally:
        mmseg.MODELS.module_dict.pop('OfUser')


def test_backbone_options():
    offers = dict(gate='proj', sr_ratio=2)
    assert build_attention('SoftmaxAttention', 32, 2, **offers).gate == 'proj'
    assert build_attention('LinearAttention', 32, 2, **offers).gate is None  # not an option of it
    assert build_attention('SpatialReductionAttention', 32, 2, **offers).sr_ratio == 2
    cfg = dict(type=SpatialReductionAttention, sr_ratio=1)
    assert build_attention(cfg, 32, 2, **offers).sr_ratio == 1

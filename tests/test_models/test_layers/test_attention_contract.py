"""The attention contract for every attention and its variants, and errors of options."""

import pickle

import pytest
import torch
from mmengine.registry import DefaultScope

from mmlinattn.models import layers
from mmlinattn.models.layers import (
    BaseAttention,
    SpatialReductionAttention,
    build_attention,
    registered_subclasses,
)
from mmlinattn.testing import ATTENTION_RULES, check_attention
from mmlinattn.testing import attention as module
from tests import more_rules
from tests.sizes import LONG

ATTENTIONS = {
    'softmax': dict(type='SoftmaxAttention'),
    'softmax-ravlt': dict(type='SoftmaxAttention', rotary=True, lepe=5, gate='proj'),
    'rala': dict(type='RALA'),
    'mala': dict(type='MALA'),
    'mala-plain': dict(type='MALA', gate=None, lepe=0, rotary=False, feature_map='softmax'),
    'mlla': dict(type='MLLAAttention'),
    'mlla-plain': dict(type='MLLAAttention', rotary=False, lepe=0, qkv_bias=False),
    'rala-no-aug': dict(type='RALA', kv_augmentation=None, gate=None, lepe=0, rotary=False),
    'rala-learnable': dict(type='RALA', kv_augmentation='learnable', num_tokens=30),
    'rala-identity-relu': dict(type='RALA', gate='identity', feature_map='relu'),
    'rala-tanh-softmax': dict(type='RALA', gate='tanh', feature_map='softmax', qkv_bias=False),
    'additive': dict(type='AdditiveAttention'),
    'additive-lepe': dict(type='AdditiveAttention', gate='identity', lepe=3),
    'efficient': dict(type='SpatialReductionAttention', sr_ratio=2),
    'rwgka': dict(type='RWGKA', num_anchors=6),
    'rwgka-lepe': dict(type='RWGKA', num_anchors=6, decay=0.9, lepe=3),
    'rwgka-one-step': dict(type='RWGKA', num_anchors=6, steps=1, heads_multiplier=2),
    'slinear': dict(type='SlinearAttention'),
    'slinear-unlimited': dict(type='SlinearAttention', steps=None, decay=0.5, lepe=3),
    'rwgkp': dict(type='RWGKP', num_anchors=6),
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
    'longformer': dict(type='VisionLongformerAttention', window_size=2),
    'longformer-relative': dict(
        type='VisionLongformerAttention', window_size=2, relative_bias=True
    ),
    'relative': dict(type='BiasedSoftmaxAttention', map_size=(4, 9)),
    'inline': dict(type='InLineAttention'),
    'inline-exp': dict(type='InLineAttention', feature_map='exp', rotary=True),
    'polaformer': dict(type='PolaFormerAttention'),
    'polaformer-learned-position': dict(
        type='PolaFormerAttention', map_size=(4, 9), alpha=2, gate=None, lepe=0
    ),
    'agent': dict(type='AgentAttention', num_agents=4),
    'agent-grid': dict(type='AgentAttention', num_agents=9, map_size=(3, 4), agent_grid=(2, 3)),
    'core': dict(type='CoreAttention', num_cores=8),
    'ttt': dict(type='TTTAttention', rotary=True),
    'ttt-plain': dict(type='TTTAttention', qkv_bias=False),
    'vssd': dict(type='VSSDAttention', state_dims=8),
    'vssd-groups': dict(type='VSSDAttention', expand=1, state_dims=4, num_groups=2, qkv_bias=True),
    'window': dict(type='WindowAttention'),
    'window-shifted': dict(type='WindowAttention', window_size=3, shift=True, gate='proj'),
}
# Rules that an attention cannot keep, with the reason.
LEARNT = 'one learnt weight per position: another number of tokens is another layer'
CELLS = 'reads the map in cells, which another size of the padded map divides anew'
RINGS = 'ignores keys beyond the last ring, where the extra tokens are'
STEPS = 'the step of each key is of x alone'
EXPECTED_FAILURES = {
    'rala-learnable': dict.fromkeys(
        ('padded_map', 'memory', 'large_map', 'odd_maps', 'extra_tokens'), LEARNT
    ),
    'efficient': dict(padded_map=CELLS),
    'relative': dict(memory='it has a bias for each pair of tokens'),
    'agent': dict(padded_map=CELLS),
    'agent-grid': dict(padded_map=CELLS),
    'rwgkp': dict(padded_map=CELLS),
    'rwgkp-two-steps': dict(padded_map=CELLS),
    'window-shifted': dict(
        padded_map=CELLS, padding='tokens that fill up windows are keys, as in the release'
    ),
    'focused-learned-position': dict(padded_map='positions are resized to the map'),
    'polaformer-learned-position': dict(padded_map='positions are resized to the map'),
    'ripple-truncated': dict(extra_tokens=RINGS),
    'vssd': dict(query_pos=STEPS),
    'vssd-groups': dict(query_pos=STEPS),
}
# Rules with tests of their own: compilation below, the others in test_export.py, test_product.py.
SLOW = ('compiles', 'exports', 'backbones')
FAST = [name for name in ATTENTION_RULES if name not in SLOW]
# Other kinds of ripple weights add few nodes to the same large graph.
RIPPLE_WEIGHTS = ('ripple-log', 'ripple-fixed', 'ripple-softmax', 'ripple-truncated')
# Options that change numbers and no operation.
ALIKE = ('inline-exp', 'polaformer-learned-position', 'vssd-groups')
FIRST_OF_TYPE = {cfg['type']: name for name, cfg in reversed(ATTENTIONS.items())}
# One of each type, and more in the long version.
COMPILED = [
    name
    for name in (ATTENTIONS if LONG else FIRST_OF_TYPE.values())
    if name not in (*RIPPLE_WEIGHTS, *ALIKE)
]


def tokens(batch=2, n=30, c=32):
    return torch.randn(batch, n, c, dtype=torch.float64)


def test_all_registered_attentions_are_tested():
    found = registered_subclasses(BaseAttention)
    ours = {name for name, cls in found.items() if cls.__module__.startswith('mmlinattn.models.')}
    tested = {cfg['type'] for cfg in ATTENTIONS.values()}
    assert ours == tested, f'add {ours - tested} to ATTENTIONS; {tested - ours} are not registered'


@pytest.mark.parametrize('name', ATTENTIONS)
def test_contract(name):
    expected, options = EXPECTED_FAILURES.get(name, {}), dict(ATTENTIONS[name])
    kind, more = options.pop('type'), more_rules.ATTENTION_RULES
    own = {rule: expected[rule] for rule in expected if rule not in more}
    check_attention(kind, rules=FAST, expected_failures=own, **options)
    rest = {rule: expected[rule] for rule in expected if rule in more}
    more_rules.check_attention(kind, expected_failures=rest, **options)


@pytest.mark.parametrize('name', ATTENTIONS)
def test_an_empty_batch_and_a_copy_by_pickle(name):
    layer = build_attention(ATTENTIONS[name], 32, 2)
    layer = pickle.loads(pickle.dumps(layer))
    layer.load_state_dict(layer.state_dict())
    assert layer(torch.zeros(0, 30, 32), (5, 6)).shape == (0, 30, 32)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('name', COMPILED)
def test_compiles(name, needs_to_compile):
    if ATTENTIONS[name]['type'] == 'RippleAttention':
        needs_to_compile('ripple attention')
    options = dict(ATTENTIONS[name])
    check_attention(options.pop('type'), rules=['compiles'], **options)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('name', ['inline', *(['enhanced', 'rala', 'vssd'] if LONG else [])])
def test_compiles_with_padding_at_a_second_size(name, needs_to_compile):
    """Test torch's default compiler, which then takes sizes of any map."""
    needs_to_compile(name)
    torch.compiler.reset()
    attn = build_attention(ATTENTIONS[name], 32, 2)
    compiled = torch.compile(attn)
    for height, width in ((5, 6), (7, 4)):
        x, mask = (
            torch.randn(2, height * width, 32),
            torch.zeros(2, height, width, dtype=torch.bool),
        )
        mask[1, :, -1] = True
        outs = [
            run(x, (height, width), key_padding_mask=mask.flatten(1)) for run in (compiled, attn)
        ]
        torch.testing.assert_close(*outs, atol=1e-4, rtol=0)
        outs[0].sum().backward()


@pytest.mark.parametrize('name', ['rala-no-aug', 'angular-paper'])
def test_permutation_of_tokens_without_positions(name, monkeypatch):
    """Test options that switch the positions of an attention off."""
    monkeypatch.setattr(module, 'uses_positions', lambda attn: False)
    options = dict(ATTENTIONS[name])
    check_attention(options.pop('type'), rules=['permutation'], **options)
    with pytest.raises(AssertionError, match='permutation: Check that permuted tokens'):
        check_attention('RALA', rules=['permutation'])


@pytest.mark.parametrize(
    'cfg, error, message',
    [
        (dict(type='RALA', gate='relu'), ValueError, "gate .*'relu'"),
        (dict(type='RALA', lepe=4), ValueError, 'lepe .* 4'),
        (dict(type='RALA', feature_map='exp'), ValueError, "'exp'"),
        (
            dict(type='RALA', feature_map=dict(type='RFAFeatures')), ValueError,
            "feature_map must be one of .* got {'type': 'RFAFeatures'}",
        ),
        (dict(type='RALA', kv_augmentation='yes'), ValueError, "'yes'"),
        (dict(type='RALA', kv_augmentation='learnable'), ValueError, 'num_tokens=None'),
        (dict(type='RALA', num_tokens=9), ValueError, 'num_tokens=9'),
        (dict(type='RALA', kv_augmentation='learnable', num_tokens=2.5), ValueError,
         'num_tokens must be a positive integer, got 2.5'),
        (
            dict(type='RALA', num_anchors=9), TypeError,
            "RALA rejects attn_cfg=.*: it has no option 'num_anchors', an option of RWGKA, RWGKP",
        ),
        (
            dict(type='RALA', lepee=3), TypeError,
            "RALA has no option 'lepee'; did you mean lepe\\? It has backend, embed_dims, eps, ",
        ),
        (dict(type='RALA', eps='1e-4'), ValueError, "eps must be a finite .* got '1e-4'"),
        (dict(type='LinearAttention', eps=-1), ValueError, 'eps must be .* least 0, got -1'),
        (dict(type='RippleAttention', threshold='1'), ValueError, "threshold .* got '1'"),
        (dict(type='RALA', lepe='5'), ValueError, "lepe must be 0 or an odd .* got '5'"),
        (dict(type='RALA', lepe=True), ValueError, 'lepe must be 0 or an odd .* got True'),
        (dict(type='RALA', proj_drop=1.5), ValueError, 'proj_drop must be .* got 1.5'),
        (dict(type='SoftmaxAttention', attn_drop='a'), ValueError, "attn_drop must .* 'a'"),
        (dict(type='RWGKA', num_anchors=6.5), ValueError, 'num_anchors must .* got 6.5'),
        (dict(type='RWGKA', decay='a'), ValueError, "decay must be in .* got 'a'"),
        (dict(type='RALA', backend='tile'), ValueError, "backend must be .*got 'tile'"),
        (dict(type='SoftmaxAttention', backend='triton'), ValueError, "got 'triton'"),
        (dict(num_anchors=9), TypeError, "attn_cfg needs 'type', .* got {'num_anchors': 9}"),
        ('AdaptiveFeatures', TypeError, "attn_cfg must have a Base.* got 'AdaptiveFeatures'"),
        (None, TypeError, 'attn_cfg must have a BaseAttention .* got None'),
        (dict(type='LinearAttention', feature_map='exp'), ValueError, "'exp'"),
        (dict(type='RippleAttention', max_distance=-1), ValueError, 'max_distance .* -1'),
        (dict(type='RippleAttention', max_distance=2.5), ValueError, 'max_distance .* 2.5'),
        (dict(type='RippleAttention', weights='linear'), ValueError, "'linear'"),
        (dict(type='RippleAttention', groups='l1'), ValueError, "groups .*'l1'"),
        (dict(type='RippleAttention', threshold=-1), ValueError, 'threshold .* -1'),
        (
            dict(type='RippleAttention', groups='log', backend='tile'), ValueError,
            "'tile' needs groups='chebyshev'",
        ),
        ('RALLA', KeyError, "'RALLA' is not registered; did you mean RALA\\? If .* custom_imports"),
    ],
)  # fmt: skip
def test_bad_options(cfg, error, message):
    with pytest.raises(error, match=message):
        build_attention(cfg, 32, 2)


@pytest.mark.parametrize('kind, options, message', [
    ('AgentAttention', dict(num_agents=50), 'num_agents must be a square number, got 50'),
    ('AgentAttention', dict(num_agents=0), 'num_agents must be a square number, got 0'),
    ('AgentAttention', dict(num_agents=4.0), r'num_agents must be a square number, got 4\.0'),
    ('AgentAttention', dict(num_agents=25, map_size=(4, 6)),
     r'num_agents=25 is more than the 24 tokens of map_size=\(4, 6\): set map_size'),
    ('AgentAttention', dict(num_agents=9, map_size=6, agent_grid=40),
     r'agent_grid=40 has more agents than the 36 tokens of map_size=\(6, 6\)'),
    ('AgentAttention', dict(map_size=0), 'map_size must be a positive integer, .* got 0'),
    ('AgentAttention', dict(agent_grid=(3, 0)),
     r'agent_grid must be a positive integer, .* got \(3, 0\)'),
    ('EnhancedLinearAttention', dict(scales=(4,)),
     r'scales must be a list of odd kernel sizes, got \(4,\)'),
    ('EnhancedLinearAttention', dict(scales=5), 'scales must be a list of odd kernel sizes, got 5'),
    ('EnhancedLinearAttention', dict(scales=(0,)), 'scales must be a positive integer, got 0'),
    ('EnhancedLinearAttention', dict(scales=(3.0,)), 'scales must be a positive integer, got 3.0'),
    ('EnhancedLinearAttention', dict(scales=(-1,)), 'scales must be a positive integer, got -1'),
    ('FocusedLinearAttention', dict(power=0.5),
     'power must be a finite number of at least 1, got 0.5'),
    ('HydraAttention', dict(backend='triton'),
     r"backend must be one of \('auto',\), got 'triton'"),
    ('InLineAttention', dict(feature_map='elu'), "feature_map must be one of .*'exp'.*, got 'elu'"),
    ('LinearAngularAttention', dict(form='code'), "form must be one of .*, got 'code'"),
    *(('NystromAttention', dict(num_landmarks=number),
       f'num_landmarks must be a square number, got {number}') for number in (0, -4, 10)),
    ('PolaFormerAttention', dict(embed_dims=30), 'must be even, .* got 30 / 2 = 15'),
    ('PolaFormerAttention', dict(alpha=0), 'alpha must be a finite number above 0, got 0'),
    ('PolaFormerAttention', dict(map_size=(4, 0)), r'map_size must be .* got \(4, 0\)'),
    ('RippleAttention', dict(max_distance=0, weights='truncated'),
     "'truncated' needs a max_distance of at least 1, got 0"),
    ('SlinearAttention', dict(steps=0), 'steps must be None or at least 1, got 0'),
    ('SlinearAttention', dict(decay=1.5), r'decay must be in \(0, 1\), got 1.5'),
    ('SlinearAttention', dict(heads_multiplier=0),
     'heads_multiplier must be a positive integer, got 0'),
    ('SpatialReductionAttention', dict(sr_ratio=0), 'sr_ratio must be a positive integer, got 0'),
    ('SpatialReductionAttention', dict(sr_ratio=1.5),
     'sr_ratio must be a positive integer, got 1.5'),
    ('SpatialReductionAttention', dict(attn_drop=2.0),
     'attn_drop must be a number from 0 to 1, got 2.0'),
    ('VSSDAttention', dict(expand=1.5), 'expand must be a positive integer, got 1.5'),
    ('VSSDAttention', dict(state_dims=0), 'state_dims must be a positive integer, got 0'),
    ('VSSDAttention', dict(num_groups=3), 'num_groups=3 must divide num_heads=2'),
    ('VSSDAttention', dict(gate='proj'), "VSSDAttention does not support gate, got 'proj'"),
    ('WindowAttention', dict(window_size=0), 'window_size must be a positive .* got 0'),
    ('WindowAttention', dict(window_size=2.0), 'window_size must be a positive .* got 2.0'),
    ('WindowAttention', dict(shift=2), 'shift must be True or False, got 2'),
    *((kind, *row) for kind in ('RWGKA', 'RWGKP') for row in (
        (dict(num_anchors=0), 'num_anchors must be a positive integer, got 0'),
        (dict(decay=1.0), r'decay must be in \(0, 1\), got 1.0'),
        (dict(steps=0), 'steps .* got 0'),
        (dict(heads_multiplier=0), 'heads_multiplier .* got 0'),
        (dict(heads_multiplier=3), 'embed_dims=32 must be a multiple of 6, .* heads_multiplier=3'),
    )),
])  # fmt: skip
def test_bad_options_of_one_kind(kind, options, message):
    with pytest.raises(ValueError, match=message):
        build_attention(dict(options, type=kind), 32, 2)


@pytest.mark.parametrize(
    'dims, heads, message',
    [
        (30, 4, 'embed_dims=30 .* num_heads=4'),
        (12, 2, 'embed_dims / num_heads must .* got 6'),
        (32.0, 2, 'embed_dims must be a positive integer, got 32.0'),
    ],
)
def test_sizes_that_do_not_fit(dims, heads, message):
    with pytest.raises(ValueError, match=message):
        build_attention('RALA', dims, heads)


@pytest.mark.parametrize(
    'attend, found',
    [
        (lambda v: v[:, :, :1], r'\(2, 4, 1, 8\)'),
        (lambda v: v.transpose(1, 2), r'\(2, 12, 4, 8\)'),
        (lambda v: v[..., :4], r'\(2, 4, 12, 4\)'),
        (lambda v: v.flatten(2), r'\(2, 4, 96\)'),
        (lambda v: None, 'NoneType'),
        (lambda v: (v, v), 'tuple'),
    ],
)
def test_a_wrong_output_of_attend_is_named(attend, found):
    class Wrong(BaseAttention):
        def attend(self, q, k, v, layout):
            return attend(v)

    message = r'^Wrong.attend\(\) must return .* with B = 2, E \+ N = 12, heads \* d = 32, got '
    message += f'{found}$'
    with pytest.raises(ValueError, match=message):
        Wrong(32, 4)(torch.randn(2, 12, 32), (3, 4))


def test_values_may_have_other_heads_than_queries():
    class Grouped(BaseAttention):
        def attend(self, q, k, v, layout):
            return q + v.mean(1, keepdim=True)

        def split_heads(self, x):
            return super().split_heads(x)[:, :2] if x is self.values else super().split_heads(x)

        def project(self, x, query_pos, layout):
            q, k, v, gate = super().project(x, query_pos, layout)
            self.values = v
            return q, k, v, gate

    x = torch.randn(2, 12, 32)
    assert Grouped(32, 4)(x, (3, 4)).shape == x.shape


def test_an_unknown_option_names_the_class_of_the_user():
    with pytest.raises(TypeError, match="^RALA has no option 'epz'; did you mean eps"):
        layers.RALA(32, 2, epz=1e-4)


def test_a_padding_mask_that_is_no_tensor():
    with pytest.raises(TypeError, match='key_padding_mask must be bool .* got list'):
        layers.RALA(32, 2)(torch.randn(1, 2, 32), (1, 2), key_padding_mask=[[False, True]])


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
    with pytest.raises(ValueError, match='num_tokens=30, a map has 20'):
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

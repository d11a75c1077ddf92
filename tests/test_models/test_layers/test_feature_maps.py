import pytest
import torch

from mmlinattn.models.layers import LinearAttention, build_feature_map
from mmlinattn.models.layers.activation_checkpointing import checkpoint_block

MAPS = {
    'elu+1': 'elu+1',
    'relu': 'relu',
    'softmax': 'softmax',
    'efficient': 'EfficientFeatures',
    'adaptive': 'AdaptiveFeatures',
    'adaptive-per-head': dict(type='AdaptiveFeatures', per_head=True, num_features=5),
    'adaptive-resampled': dict(type='AdaptiveFeatures', resample=True),
    'adaptive-no-output-layer': dict(type='AdaptiveFeatures', output_layer=False),
    't2r': dict(type='T2RFeatures', num_features=6),
    'dpfp': dict(type='DPFPFeatures', order=2),
    'rfa': 'RFAFeatures',
    'rfa-resampled': dict(type='RFAFeatures', resample=True),
    'focused': dict(type='FocusedFeatures', power=2),
    'performer': dict(type='PerformerFeatures', num_features=20),
    'performer-resampled': dict(type='PerformerFeatures', resample=True),
}


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(params=MAPS.values(), ids=MAPS.keys())
def feature_map(request):
    return build_feature_map(request.param, head_dim=8, num_heads=3).double().eval()


def test_features_of_queries_and_keys(feature_map):
    x = tokens(2, 2, 3, 7, 8).requires_grad_()
    q, k = feature_map(*x)
    assert q.shape == k.shape and q.shape[:3] == (2, 3, 7) and q.dtype == torch.float64
    if type(feature_map).__name__ != 'RFAFeatures':
        assert (q >= 0).all() and (k >= 0).all()
    (q * k.detach().flip(2)).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(p.grad is not None for p in feature_map.parameters())


def test_half_precision_computes_in_float32(feature_map):
    """Test the dtype of the features: that of the input, unless they exceed float16."""
    x = 4 * torch.randn(2, 2, 3, 7, 8).half()
    feature_map = feature_map.float()
    for dtype in (torch.float16, torch.bfloat16):
        wide = feature_map.exceeds_float16 and dtype == torch.float16
        tokens_of_type = x.to(dtype)
        exact = feature_map(*tokens_of_type.float())
        with torch.autocast('cpu', dtype=torch.bfloat16):
            for got, expected in zip(feature_map(*tokens_of_type), exact):
                assert got.dtype == (torch.float32 if wide else dtype)
                expected = expected.to(got.dtype)
                close = torch.testing.assert_close
                close(got.float(), expected.float(), rtol=1e-5 if wide else 0, atol=1e-6 * wide)


@pytest.mark.parametrize('cfg', MAPS.values(), ids=MAPS.keys())
@pytest.mark.parametrize('head_dim', [32, 64])
def test_gradients_in_float16_are_finite(cfg, head_dim):
    """Test queries and keys as large as those of a trained model."""
    attn = LinearAttention(2 * head_dim, 2, feature_map=cfg)
    attn.in_proj.weight.data.normal_(std=3 / (2 * head_dim) ** 0.5)
    x, weight = torch.randn(2, 2, 400, 2 * head_dim).requires_grad_()
    with torch.autocast('cpu', torch.float16):
        out = attn(x, (20, 20))
    (gradient,) = torch.autograd.grad((out.float() * weight).sum(), x)
    assert gradient.isfinite().all() and gradient.any()


@pytest.mark.parametrize('name', ['RFAFeatures', 'FocusedFeatures'])
def test_gradients_of_a_query_of_zeros_are_bounded(name):
    features = build_feature_map(name, 8, 2)
    q, k = torch.zeros(2, 1, 2, 3, 8).requires_grad_()
    out = torch.cat([x.flatten() for x in features(q, k)])
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad.abs().max() < 1e8


def test_adaptive_map_by_hand():
    feature_map = build_feature_map('AdaptiveFeatures', 8, 3).double()
    x = tokens(1, 3, 4, 8)
    phase = x @ feature_map.frequencies.T
    linear = feature_map.output_layer
    waves = torch.cat([phase.sin(), phase.cos()], -1)
    expected = (waves @ linear.weight.T + linear.bias).clamp(min=0)
    torch.testing.assert_close(feature_map(x, x)[0], expected)


def test_per_head_map_equals_one_map_per_head():
    feature_map = build_feature_map(dict(type='AdaptiveFeatures', per_head=True), 8, 3).double()
    x, frequencies, linear = tokens(2, 3, 4, 8), feature_map.frequencies, feature_map.output_layer
    expected = []
    for h in range(3):
        phase = x[:, h] @ frequencies[h].T
        waves = torch.cat([phase.sin(), phase.cos()], -1)
        expected.append((waves @ linear.weight[h].T + linear.bias[h]).clamp(min=0))
    torch.testing.assert_close(feature_map(x, x)[0], torch.stack(expected, 1))


def test_w1_is_initialised_standard_normal():
    frequencies = build_feature_map('AdaptiveFeatures', 64, 1).frequencies
    assert abs(frequencies.mean()) < 0.1 and abs(frequencies.std() - 1) < 0.1


RANDOM = {
    'AdaptiveFeatures': 'frequencies',
    'RFAFeatures': 'frequencies',
    'PerformerFeatures': 'directions',
}


@pytest.fixture(params=RANDOM)
def resampled(request):
    return build_feature_map(dict(type=request.param, resample=True), 8, 2)


def normalized(features):
    """Divide by the largest feature of a head, which cancels the common factor of Performer."""
    return features / features.abs().amax((-2, -1), keepdim=True)


def test_resampling_in_training_uses_one_draw_for_queries_and_keys(resampled):
    x = torch.randn(1, 2, 1, 8)
    q, k = resampled(x, x)
    torch.testing.assert_close(normalized(q), normalized(k))
    assert not torch.allclose(q, resampled(x, x)[0])
    resampled.eval()
    assert torch.equal(resampled(x, x)[0], resampled(x, x)[0])
    name = RANDOM[type(resampled).__name__]
    assert name in resampled.state_dict() and name not in dict(resampled.named_parameters())


def test_a_draw_has_the_distribution_of_the_saved_weights(resampled):
    saved = getattr(resampled, RANDOM[type(resampled).__name__])
    draws = torch.stack([resampled.weights(saved) for _ in range(200)])
    assert draws.shape[1:] == saved.shape and abs(draws.mean()) < 0.05
    assert abs(draws.std() - 1) < 0.05
    if type(resampled).__name__ == 'PerformerFeatures':
        products = draws @ draws.mT
        torch.testing.assert_close(products, products.diagonal(dim1=1, dim2=2).diag_embed())


def test_a_seed_gives_the_draws_again(resampled):
    x, state = torch.randn(1, 2, 4, 8), torch.get_rng_state()
    first = [resampled(x, x)[0] for _ in range(2)]
    torch.set_rng_state(state)
    assert all(torch.equal(resampled(x, x)[0], draw) for draw in first)


def test_activation_checkpointing_uses_the_draw_of_the_forward_pass(resampled):
    x, state = torch.randn(1, 2, 4, 8), torch.get_rng_state()
    grads = []
    for run in (resampled, lambda q, k: checkpoint_block(resampled, q, k)):
        torch.set_rng_state(state)
        leaf = x.clone().requires_grad_()
        q, k = run(leaf, leaf)
        resampled(x, x)  # another draw before the backward pass
        grads.append(torch.autograd.grad((q * k.flip(2)).square().sum(), leaf)[0])
    assert torch.equal(*grads)


def test_resampling_compiles_to_one_graph(resampled):
    compiled = torch.compile(resampled, fullgraph=True, backend='aot_eager')
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    q, k = compiled(x, x)
    (q.sum() + k.square().sum()).backward()
    assert torch.isfinite(x.grad).all() and not torch.allclose(q, compiled(x, x)[0])


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'is_exporting'),
    reason='torch.export of 2.4 fails on regions without autocast',
)
def test_export_uses_the_saved_weights(resampled):
    x = torch.randn(1, 2, 4, 8)
    program = torch.export.export(resampled.eval(), (x, x)).module()
    torch.testing.assert_close(program(x, x), resampled(x, x))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_resampling_in_half_precision(resampled, dtype):
    x = torch.randn(1, 2, 4, 8).to(dtype)
    wide = resampled.exceeds_float16 and dtype == torch.float16
    for features in resampled.to(dtype)(x, x):
        assert features.isfinite().all() and features.dtype == (torch.float32 if wide else dtype)


@pytest.mark.parametrize('kind', ['RFAFeatures', 'PerformerFeatures'])
def test_random_features_approximate_their_kernel(kind):
    feature_map = build_feature_map(dict(type=kind, num_features=8192), 4, 1).double()
    x, y = tokens(2, 1, 1, 6, 4) / 2
    q, k = feature_map(x, y)
    kernel = q @ k.mT
    if kind == 'RFAFeatures':  # Gaussian kernel of unit vectors
        x, y = (t / t.norm(dim=-1, keepdim=True) for t in (x, y))
        expected = (-(torch.cdist(x, y) ** 2) / 2).exp()
    else:  # softmax kernel, up to one factor per query and one for all keys
        kernel = kernel / kernel.sum(-1, keepdim=True)
        expected = (x @ y.mT / 2).softmax(-1)
    torch.testing.assert_close(kernel, expected, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    'cfg, message',
    [
        ('exp', r"feature_map must be one of \['elu\+1'.*'T2RFeatures'\], got 'exp'"),
        ('RALA', r"feature_map must be one of .*, got 'RALA'"),
        ('FocusedFeature', "got 'FocusedFeature'; did you mean FocusedFeatures?"),
        (dict(num_features=3), 'feature_map must be one of .*, got None'),
        (None, 'feature_map must be one of .*, got None'),
        (dict(type='elu+1', power=3), r"'elu\+1' has no options, got .*'power': 3"),
        (dict(type='AdaptiveFeatures', num_features=0), 'num_features .* 0'),
        (dict(type='PerformerFeatures', num_features=2.5), 'num_features .* 2.5'),
        (dict(type='DPFPFeatures', order=-1), 'order .* -1'),
    ],
)
def test_bad_options(cfg, message):
    with pytest.raises(ValueError, match=message):
        build_feature_map(cfg, 8, 2)

"""CvT compared with its definition, the release and transformers; parameters and GFLOPs."""

import json
from ast import literal_eval

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config

from mmlinattn.analysis import analyse
from mmlinattn.checkpoints import CheckpointError, convert, load_state_dict
from mmlinattn.engine import build_model
from mmlinattn.models.backbones import CvT

DIMS, DEPTHS, HEADS = (8, 16, 24), (1, 2, 2), (1, 2, 3)
TINY = dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS)


def build(arch=TINY, **kwargs) -> CvT:
    return CvT(arch, **kwargs)


def released_weights() -> dict:
    """Return random weights with the names of the release."""
    weights, channels = {}, 3

    def put(name, *shape):
        weights[name] = torch.randn(shape, dtype=torch.float64) * 0.3

    def layer(name, *shape):
        put(f'{name}.weight', *shape)
        put(f'{name}.bias', shape[0])

    for i, (dim, depth) in enumerate(zip(DIMS, DEPTHS)):
        side = 3 if i else 7
        layer(f'stage{i}.patch_embed.proj', dim, channels, side, side)
        layer(f'stage{i}.patch_embed.norm', dim)
        for j in range(depth):
            block = f'stage{i}.blocks.{j}'
            for name in ('norm1', 'norm2'):
                layer(f'{block}.{name}', dim)
            for name in 'qkv':
                put(f'{block}.attn.conv_proj_{name}.conv.weight', dim, 1, 3, 3)
                bn = f'{block}.attn.conv_proj_{name}.bn'
                layer(bn, dim)
                put(f'{bn}.running_mean', dim)
                weights[f'{bn}.running_var'] = torch.rand(dim, dtype=torch.float64) + 0.5
                weights[f'{bn}.num_batches_tracked'] = torch.tensor(9)
                layer(f'{block}.attn.proj_{name}', dim, dim)
            layer(f'{block}.attn.proj', dim, dim)
            layer(f'{block}.mlp.fc1', 4 * dim, dim)
            layer(f'{block}.mlp.fc2', dim, 4 * dim)
        channels = dim
    put('stage2.cls_token', 1, 1, channels)
    layer('norm', channels)
    layer('head', 9, channels)
    return weights


def definition(weights, image):
    """Compute the class token after the final norm by the definition of paper and release."""

    def w(name):
        return weights[f'{name}.weight'], weights.get(f'{name}.bias')

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], *w(name), eps=1e-5)

    for i, (dim, depth, heads) in enumerate(zip(DIMS, DEPTHS, HEADS)):
        stage = f'stage{i}'
        stride, padding = (2, 1) if i else (4, 2)
        image = F.conv2d(image, *w(f'{stage}.patch_embed.proj'), stride=stride, padding=padding)
        hw = image.shape[-2:]
        x = norm(f'{stage}.patch_embed.norm', image.flatten(2).mT)
        extra = int(i == 2)
        if extra:
            x = torch.cat([weights['stage2.cls_token'].expand(len(x), 1, dim), x], 1)
        for j in range(depth):
            block = f'{stage}.blocks.{j}'
            y, parts = norm(f'{block}.norm1', x), {}
            for name, step in zip('qkv', (1, 2, 2)):
                conv = f'{block}.attn.conv_proj_{name}'
                places = y[:, extra:].mT.unflatten(-1, hw)
                places = F.conv2d(places, w(f'{conv}.conv')[0], stride=step, padding=1, groups=dim)
                mean, var = (weights[f'{conv}.bn.running_{of}'] for of in ('mean', 'var'))
                places = F.batch_norm(places, mean, var, *w(f'{conv}.bn'))
                tokens = torch.cat([y[:, :extra], places.flatten(2).mT], 1)
                tokens = F.linear(tokens, *w(f'{block}.attn.proj_{name}'))
                parts[name] = tokens.unflatten(-1, (heads, -1)).transpose(1, 2)
            attn = (parts['q'] @ parts['k'].mT * dim**-0.5).softmax(-1) @ parts['v']
            x = x + F.linear(attn.transpose(1, 2).flatten(2), *w(f'{block}.attn.proj'))
            hidden = F.linear(norm(f'{block}.norm2', x), *w(f'{block}.mlp.fc1'))
            hidden = hidden * torch.sigmoid(1.702 * hidden)
            x = x + F.linear(hidden, *w(f'{block}.mlp.fc2'))
        image = x[:, extra:].mT.unflatten(-1, hw)
    return norm('norm', x[:, 0])


@pytest.mark.parametrize('size', [(64, 64), (61, 83)])
def test_equals_its_definition(size):
    weights = released_weights()
    converted = convert(weights, source='cvt')
    assert (
        converted.pop('head.fc.weight').shape == (9, 24)
        and converted.pop('head.fc.bias') is not None
    )
    model = build(out_indices=(2,), out_type='cls_token').double().eval()
    model.load_state_dict({name[len('backbone.') :]: value for name, value in converted.items()})
    image = torch.randn(2, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        (out,), expected = model(image), definition(weights, image)
    assert (out - expected).norm() < 1e-9 * expected.norm()


def check_classifier(converted, image, expected, **options):
    """Compare stages and logits of a CvT with converted weights; return a logits function."""
    head = [converted.pop(f'head.fc.{name}') for name in ('weight', 'bias')]
    state = {name[len('backbone.') :]: value for name, value in converted.items()}
    model = build(out_indices=(2,), out_type='cls_token', **options).eval()
    model.load_state_dict(state)
    stages = build(out_norm=False, **options).eval()
    stages.load_state_dict({k: v for k, v in state.items() if not k.startswith('out_norms')})

    def logits(image):
        return F.linear(model(image)[0], *head)

    with torch.no_grad():
        for i, out in enumerate(stages(image)):
            other = expected[f'stage.{i}']
            assert out.shape == other.shape
            assert (out - other).norm() < 1e-5 * other.norm()
        assert (logits(image) - expected['logits']).abs().max() < 1e-5
    return logits


# transformers uses GELU instead of the release's x sigmoid(1.702 x).
@pytest.mark.parametrize('code, act', [('released', 'quick_gelu'), ('transformers', 'gelu')])
def test_equals_recorded_outputs(golden, code, act):
    tensors, metadata = golden('cvt_released')
    sizes = {name: literal_eval(metadata[name]) for name in ('dims', 'heads', 'depths')}
    arch = dict(embed_dims=sizes['dims'], num_heads=sizes['heads'], depths=sizes['depths'])
    weights = {k[len('weight.') :]: v for k, v in tensors.items() if k.startswith('weight.')}
    converted = convert(weights, source='cvt')
    if code == 'transformers':
        names = json.loads(metadata['transformers_names'])
        other = convert({names[k]: v for k, v in weights.items()}, source='cvt')
        assert other.keys() == converted.keys()
        assert all(torch.equal(other[name], value) for name, value in converted.items())
    expected = {k[len(code) + 1 :]: v for k, v in tensors.items() if k.startswith(f'{code}.')}
    logits = check_classifier(converted, tensors['image'], expected, arch=arch, act=act)
    image = tensors['image'].clone().requires_grad_()
    (grad,) = torch.autograd.grad(logits(image).square().mean(), image)
    assert (grad - expected['grad.image']).norm() < 1e-5 * expected['grad.image'].norm()


def test_equals_transformers(tmp_path):
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    arch = dict(embed_dims=[8, 16, 24], num_heads=[1, 2, 3], depths=[1, 2, 3])
    names = dict(embed_dim='embed_dims', num_heads='num_heads', depth='depths')
    cfg = transformers.CvtConfig(**{k: arch[v] for k, v in names.items()}, num_labels=9)
    theirs, image = transformers.CvtForImageClassification(cfg).eval(), torch.randn(2, 3, 61, 83)
    for name, value in theirs.named_parameters():
        torch.nn.init.normal_(value, float('norm' in name and 'weight' in name), 0.2)
    with torch.no_grad():
        out = theirs(image, output_hidden_states=True)
    expected = {f'stage.{i}': stage for i, stage in enumerate(out.hidden_states)}
    theirs.save_pretrained(tmp_path)
    weights, _ = load_state_dict(tmp_path / 'model.safetensors')
    expected['logits'] = out.logits
    check_classifier(convert(weights, source='cvt'), image, expected, arch=arch, act='gelu')


def test_unknown_name_raises():
    with pytest.raises(CheckpointError, match='stage0.blocks.0.attn.rel_pos'):
        convert({'stage0.blocks.0.attn.rel_pos': torch.zeros(1)}, source='cvt')


# Table 1 of the CvT paper and table 4 of the RWGKA paper. The latter replaces the attention of the
# first two stages, with all keys. With all three stages CvT-13-RWGKP has 15.0 G at 384, not 13.5.
SWAP = {name: [name, name, 'ConvProjectionAttention'] for name in ('RWGKP', 'RWGKA')}
OWN = 'ConvProjectionAttention'


@pytest.mark.parametrize(
    'arch, attn_cfg, size, params, total',
    [
        ('13', OWN, 224, 20.0, 4.55), ('13', OWN, 384, 20.0, 16.3), ('21', OWN, 384, 31.6, 25.0),
        ('13', SWAP['RWGKP'], 224, 20.0, 4.4), ('13', SWAP['RWGKP'], 384, 20.0, 13.5),
        ('13', SWAP['RWGKA'], 224, 20.0, 4.5), ('13', SWAP['RWGKA'], 384, 20.0, 13.6),
        ('21', SWAP['RWGKP'], 384, 31.6, 21.8),
    ],
)  # fmt: skip
def test_parameters_and_gflops_of_the_papers(arch, attn_cfg, size, params, total):
    backbone = dict(
        type='CvT', arch=arch, attn_cfg=attn_cfg, out_indices=(2,), out_type='cls_token'
    )
    cost = analyse(build_model(Config(dict(model=backbone))), (size, size))
    assert (cost.params + 385 * 1000) / 1e6 == pytest.approx(params, rel=0.01)
    assert cost.total / 1e9 == pytest.approx(total, rel=0.03)


def test_parameters_of_w24():
    with torch.device('meta'):
        model = build('w24', out_indices=(2,))
    count = sum(value.numel() for value in model.parameters())
    assert count / 1e6 == pytest.approx(277, abs=1)  # table 1, with a head for 1,000 classes


def test_outputs():
    model = build().eval()
    image = torch.randn(1, 3, 64, 96)
    assert [tuple(out.shape) for out in model(image)] == [
        (1, 8, 16, 24), (1, 16, 8, 12), (1, 24, 4, 6),
    ]  # fmt: skip
    assert len(build(out_indices=(0, 1)).stages) == 2
    assert build(out_indices=(0, 1)).cls_token is None
    plain = build(out_norm=False, with_cls_token=False)
    assert not plain.out_norms and plain(image)[2].shape == (1, 24, 4, 6)


@pytest.mark.parametrize('stages', [1, 3])
def test_frozen_stages(stages):
    model = build(frozen_stages=stages).train()
    learn = {name for name, value in model.named_parameters() if value.requires_grad}
    frozen = {f'{part}.{i}' for part in ('patch_embeds', 'stages', 'out_norms') for i in range(3)}
    tops = {'.'.join(name.split('.')[:2]) for name in learn}
    left = {name for name in frozen if int(name[-1]) >= stages}
    assert tops == (left | {'cls_token'} if stages < 3 else set())
    assert [norm.training for norm in model.out_norms.values()] == [i >= stages for i in range(3)]


def test_stochastic_depth_in_the_last_stage_only():
    model = build(drop_path_rate=0.2)
    rates = [[block.drop_path.drop_prob for block in stage] for stage in model.stages]
    assert rates == [[0.0], [0.0, 0.0], [0.0, pytest.approx(0.2)]]


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(out_type='cls_token'), r'needs .* out_indices=\(2,\), got .*\(0, 1, 2\)'),
        (
            dict(out_type='cls_token', out_indices=(2,), with_cls_token=False),
            'needs with_cls_token=True .* got with_cls_token=False',
        ),
        (dict(attn_cfg=['RALA'] * 4), 'attn_cfg must be one attention, or 3: one per stage'),
        (dict(arch=dict(TINY, depths=(1, 1))), r"arch\['depths'\] must have 3 values"),
        (dict(out_indices=(3,)), 'out_indices must be a list of different stages in 0..2'),
    ],
)
def test_bad_options(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_attention_without_support_for_the_class_token_raises():
    with pytest.raises(ValueError, match='WindowAttention does not support extra tokens'):
        build(attn_cfg='WindowAttention')
    image = torch.randn(1, 3, 64, 64)
    assert len(build(attn_cfg='WindowAttention', with_cls_token=False)(image)) == 3
    assert len(build(attn_cfg='WindowAttention', out_indices=(0, 1))(image)) == 2


def test_compiled_checkpointing_counts_a_batch_once():
    torch.compiler.reset()
    model, image = build(with_cp=True, out_indices=(0,)), torch.randn(2, 3, 32, 32)
    # With torch 2.4 aot_eager, a backend for debugging, counts a batch twice.
    backend = 'inductor' if torch.__version__.startswith('2.4.') else 'aot_eager'
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    compiled(image)[0].square().mean().backward()
    norm = model.stages[0][0].attn.conv_q.bn
    assert int(norm.num_batches_tracked) == 1
    once = norm.running_mean.clone()
    norm.running_mean.zero_()
    model(image)[0].square().mean().backward()
    torch.testing.assert_close(norm.running_mean, once)

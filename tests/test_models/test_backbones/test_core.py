"""Core attention against recorded tensors of VECA, and against one masked N x N softmax."""

import math

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.backbones import TransformerBlock, ViT
from mmlinattn.models.layers import CoreAttention, CoreCoordinates, build_attention
from mmlinattn.models.layers.core import new_coordinates
from mmlinattn.models.layers.rotary import RotaryCoordinates
from mmlinattn.models.segmentors import EoMT
from tests.recordings import assert_equals_recording, assert_near, below, load_case

NAMES = {
    'patch_embed.proj': 'embed.proj', 'norm_attn': 'norm1', 'norm_ffn': 'norm2', 'fc1': 'ffn.fc1',
    'fc2': 'ffn.fc2', 'out_proj': 'proj', 'blocks': 'layers', 'pos_linears': 'cores.moves',
    'final_norm': 'norm',
}  # fmt: skip
TINY = dict(embed_dims=16, num_heads=2, depth=3, patch_size=8)


def ours(theirs):
    """Rename the tensors of a release; those of queries, keys and values become one."""
    found, theirs = {}, dict(theirs)
    chunks = {
        name: torch.cat(
            [theirs.pop(k) for k in sorted(theirs) if k.startswith(f'{name}_chunks')], 1
        )
        for name in ('query_token', 'qcoord')
        if f'{name}_chunks.0' in theirs
    }
    if chunks:
        found['embed.cls_token'] = chunks['query_token'][:, :1]
        found['cores.tokens'] = chunks['query_token'][:, 1:]
        found['cores.coords'] = chunks['qcoord']
    for i, alpha in enumerate(theirs.pop('pos_alpha', ())):
        found[f'cores.moves.{i}.alpha'] = alpha
    for name in [k for k in theirs if 'q_proj.' in k]:
        parts = [theirs.pop(name.replace('q_proj', f'{part}_proj')) for part in 'qkv']
        found[name.replace('q_proj', 'in_proj')] = torch.cat(parts)
    found.update(theirs)
    for old, new in NAMES.items():
        found = {k.replace(old, new): v for k, v in found.items()}
    return found


@pytest.mark.parametrize('case', ['attention', 'attention_padded', 'block'])
def test_recorded_layer(case, golden):
    tensors, info = load_case(golden, 'veca', case)
    count, heads = info['cores'], info['kwargs']['num_heads']
    options = dict(num_cores=count, zero_frequencies=info['p_zero_freqs'])
    if case == 'block':
        cfg = dict(options, type='CoreAttention')
        layer = TransformerBlock(16, heads, 1.5, cfg, eps=1e-5, ffn='swiglu', own_cores=False)
    else:
        layer = CoreAttention(16, heads, own_cores=False, **options)
    coords = tensors['in.coords'].requires_grad_()
    places = CoreCoordinates(coords[:, :count], coords[:, count:])
    assert_equals_recording(layer, tensors, info, ours, num_extra_tokens=count, coords=places)
    assert (coords.grad - tensors['grad.coords']).abs().max() < 1e-9


@pytest.mark.parametrize('file, case', [
    ('veca', 'model'), ('veca_small', 'released'), ('veca_small', 'budget')
])  # fmt: skip
def test_recorded_model(file, case, golden):
    """A budget of cores is a model with fewer cores, which loads the first."""
    tensors, info = load_case(golden, file, case)
    sizes, exact = info['kwargs'], info['dtype'] == 'float64'
    attn = dict(
        type='CoreAttention', num_cores=info['active'] or sizes['num_query_tokens'],
        zero_frequencies=sizes['rope_p_zero_freqs'],
    )  # fmt: skip
    arch = dict(
        ViT.architectures['veca-s'], embed_dims=sizes['hidden_dim'], num_heads=sizes['num_heads'],
        depth=sizes['num_layers'], mlp_ratio=sizes['mlp_ratio'], patch_size=sizes['patch_size'],
    )  # fmt: skip
    model, state = ViT(arch, attn, img_size=sizes['patch_size']).eval(), below(tensors, 'state.')
    head = [state.pop(f'output_proj.{name}', None) for name in ('weight', 'bias')]
    model.to(tensors['in.x'].dtype).load_state_dict(ours(state))
    image, outs = tensors['in.x'].clone().requires_grad_(), []
    for out_type in ('cls_token', 'featmap'):
        model.out_type = out_type
        (out,) = model(image)
        out = out.flatten(2).mT if out.dim() == 4 else out
        outs.append(out if head[0] is None else F.linear(out, *head))
    assert_near(outs, [tensors['out.0'], tensors['out.1']], 1e-12 if exact else 1e-5)
    sum(out.square().mean() for out in outs).backward()
    assert (image.grad - tensors['grad.x']).norm() < (1e-9 if exact else 1e-4) * image.grad.norm()
    for name, grad in ours(below(tensors, 'grad.state.')).items():
        assert (model.get_parameter(name).grad - grad).abs().max() < 1e-9, name


def turned(x, places):
    """Rotate (B, heads, T, 8) by places (B, T, 2) with the angles 2 pi and 0 of each coordinate."""
    frequencies = torch.tensor([2 * math.pi, 0.0], dtype=x.dtype)
    unit = torch.exp(1j * places[..., None] * frequencies).flatten(-2)
    pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous())
    return torch.view_as_real(pairs * unit[:, None]).flatten(-2)


def all_pairs(attn, x, places, count):
    """Core attention by one N x N softmax, in which pairs of map tokens are hidden."""
    q, k, v = attn.in_proj(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    logits = turned(q, places) @ turned(k, places).mT / 8**0.5
    logits[..., count:, count:] = -math.inf
    return attn.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


def centres(height, width):
    places = [(2 * (x + 0.5) / width - 1, 2 * (y + 0.5) / height - 1)
              for y in range(height) for x in range(width)]  # fmt: skip
    return torch.tensor(places, dtype=torch.float64)[None]


def test_equals_a_softmax_of_all_pairs():
    """With class token and register as the first cores, and coordinates that move."""
    cfg = dict(type='CoreAttention', num_cores=4, zero_frequencies=0.5)
    model = ViT(TINY, cfg, img_size=32, num_registers=1).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(2, 3, 24, 40, dtype=torch.float64)
    x, cores = model.embed(images)[0], model.cores
    x = torch.cat([x[:, :2], cores.tokens.expand(2, -1, -1), x[:, 2:]], 1)
    raw = cores.coords.expand(2, -1, -1)
    for i, layer in enumerate(model.layers):
        if i:
            move = cores.moves[i - 1]
            raw = raw + move.alpha * F.linear(x[:, :4], move.weight, move.bias)
        places = torch.cat([raw.tanh(), centres(3, 5).expand(2, -1, -1)], 1)
        x = x + all_pairs(layer.attn, layer.norm1(x), places, 4)
        x = x + layer.ffn(layer.norm2(x))
    expected = model.norm(x)[:, 4:].mT.unflatten(-1, (3, 5))
    torch.testing.assert_close(model(images)[0], expected, rtol=1e-10, atol=1e-10)
    assert (raw - cores.coords).abs().max() > 0.01


def test_cores_of_a_layer_read_before_they_are_read():
    """A class token has no position, and an image is as large as its tokens without padding."""
    attn = CoreAttention(16, 2, 3, zero_frequencies=0.5).double().eval()
    x = torch.randn(1, 1 + 3 * 4, 16, dtype=torch.float64)
    places = torch.cat([attn.coords.tanh(), torch.zeros(1, 1, 2), centres(3, 4)], 1)
    read = all_pairs(attn, torch.cat([attn.cores, x], 1), places, 3)[:, :3]
    expected = all_pairs(attn, torch.cat([attn.cores + read, x], 1), places, 3)[:, 3:]
    padded = F.pad(x[:, 1:].unflatten(1, (3, 4)), (0, 0, 0, 2, 0, 1), value=9.0)
    mask = F.pad(torch.zeros(1, 3, 4, dtype=torch.bool), (0, 2, 0, 1), value=True)
    out = attn(
        torch.cat([x[:, :1], padded.flatten(1, 2)], 1), (4, 6), num_extra_tokens=1,
        key_padding_mask=F.pad(mask.flatten(1), (1, 0)),
    )  # fmt: skip
    found = torch.cat([out[:, :1], out[:, 1:].unflatten(1, (4, 6))[:, :3, :4].flatten(1, 2)], 1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_coordinates_learn_in_half_precision():
    attn, x, grads = CoreAttention(16, 2, 4).eval(), torch.randn(2, 15, 16), []
    for half in (False, True):
        attn.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            out = attn(x, (3, 5))
        (out.float() * torch.linspace(-1, 1, 16)).sum().backward()
        grads.append(attn.coords.grad)
    assert (grads[1] - grads[0]).norm() < 0.1 * grads[0].norm()


def test_training_shifts_and_scales_all_places_once_a_batch():
    model = ViT(TINY, 'CoreAttention', img_size=32)
    seen = [set(), set()]
    for _ in range(40):
        places = model.cores.start(model.embed(torch.randn(2, 3, 24, 40))[0], (3, 5), 64)[2][0]
        expected = centres(3, 5)[0].float()
        for axis in (0, 1):
            low, high = expected[:, axis].argmin(), expected[:, axis].argmax()
            factor = (places[high] - places[low])[axis] / (expected[high] - expected[low])[axis]
            shift = places[low, axis] / factor - expected[low, axis]
            torch.testing.assert_close(places[:, axis], (expected[:, axis] + shift) * factor)
            assert 0.5 <= factor <= 2 and abs(shift) <= 0.0801
            seen[axis].add((round(factor.item(), 4), round(shift.item(), 4)))
    (widths, _), (heights, _) = (zip(*found) for found in seen)
    assert {*widths} == {*heights} and min(widths) < 0.7 < 1.5 < max(widths)  # one factor
    assert max(shift for found in seen for _, shift in found) > 0.05
    places = model.eval().cores.start(model.embed(torch.randn(2, 3, 24, 40))[0], (3, 5), 64)[2]
    torch.testing.assert_close(places, centres(3, 5).float())


def test_cores_start_as_farthest_points():
    points = new_coordinates(64).tanh()[0].detach()
    gaps = [torch.cdist(points[i : i + 1], points[:i]).min().item() for i in range(1, 64)]
    assert points.abs().max() < 1 and points[0].norm() < 0.05
    assert gaps == sorted(gaps, reverse=True) and gaps[7] > 0.9 and gaps[-1] > 0.2


@pytest.mark.parametrize('cfg, options, message', [
    (dict(num_cores=2), dict(num_registers=1), 'num_cores must be above 2, .* got 2'),
    (dict(rotary=True), {}, r'must be a dict .* got True: set rotary=dict\(\)'),
    (dict(zero_frequencies=1.5), {}, 'zero_frequencies must be a number from 0 to 1, got 1.5'),
    ({}, dict(cls_token_from=1), 'set cls_token_from=0, got 1'),
])  # fmt: skip
def test_bad_options(cfg, options, message):
    with pytest.raises(ValueError, match=message):
        ViT(TINY, dict(cfg, type='CoreAttention'), img_size=32, **options)


def test_other_calls_that_raise():
    cfgs = [dict(type='CoreAttention', num_cores=count) for count in (8, 8, 16)]
    with pytest.raises(ValueError, match=r'set one num_cores.*got num_cores=\[8, 8, 16\]'):
        ViT(TINY, cfgs, img_size=32)
    with pytest.raises(ValueError, match=r'got nested=\[0, 0, 4\]'):
        ViT(TINY, [*cfgs[:2], dict(cfgs[0], nested=4)], img_size=32)
    with pytest.raises(ValueError, match='nested=4 needs a backbone that carries the cores'):
        CoreAttention(16, 2, 8, nested=4)
    attn = build_attention(cfgs[0], 16, 2, own_cores=False)
    with pytest.raises(ValueError, match='coords must be given, by the backbone'):
        attn(torch.randn(1, 8 + 6, 16), (2, 3), num_extra_tokens=8)


def test_frozen_layers_and_activation_checkpoints():
    """A step of the coordinates is frozen with the layer that follows it."""
    cfg = dict(type='CoreAttention', num_cores=4)
    model = ViT(TINY, cfg, img_size=32, frozen_stages=2).train()
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    assert {name for name in trained if name.startswith('cores')} == {
        f'cores.moves.1.{name}' for name in ('weight', 'bias', 'alpha')
    }
    assert all(name.startswith(('cores.moves.1.', 'layers.2.', 'norm.')) for name in trained)
    image, grads = torch.randn(2, 3, 24, 40), []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model = ViT(TINY, cfg, img_size=32, with_cp=with_cp)
        model(image)[0].square().sum().backward()
        grads.append({name: x.grad for name, x in model.named_parameters()})
    assert grads[0]['cores.coords'].norm() > 0
    torch.testing.assert_close(*grads)


def test_eomt_does_not_take_it():
    vit = dict(type='ViT', arch=TINY, img_size=32, attn_cfg='CoreAttention')
    head = dict(
        type='mmlinattn.models.segmentors.EoMTHead', in_channels=16, num_classes=2, num_queries=4,
        num_upscales=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match='EoMT does not take CoreAttention'):
        EoMT(vit, head, num_query_layers=1)


def test_nested_training_draws_large_budgets_more_often():
    """4 to 16 cores by weights 1 1 2 2. The first of them are a model of their own."""
    cfg = dict(type='CoreAttention', num_cores=16, nested=4)
    model = ViT(TINY, cfg, img_size=16, num_registers=1)
    counts = [model.cores.draw_count() for _ in range(300)]
    shares = [counts.count(k) / 300 for k in (4, 8, 12, 16)]
    assert shares == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=0.09)
    fewer = ViT(TINY, dict(cfg, num_cores=8), img_size=16, num_registers=1)
    fewer.load_state_dict(model.state_dict())
    images, model.cores.augmentation = torch.randn(2, 3, 16, 16), RotaryCoordinates()
    expected = fewer.eval()(images)[0]
    assert any(torch.equal(model(images)[0], expected) for _ in range(40))
    model.cores.count = 8
    assert torch.equal(model.eval()(images)[0], expected)
    with pytest.raises(ValueError, match='nested must divide num_cores=16, got 3'):
        CoreAttention(16, 2, 16, nested=3, own_cores=False)

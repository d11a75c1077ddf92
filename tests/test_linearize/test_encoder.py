"""The encoder of SMCA: layers that count on, both objectives by hand, and padded batches."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.structures import BaseDataElement

from mmlinattn.engine import build_model
from mmlinattn.engine.runner.cpu_amp import CPUAmpOptimWrapper
from mmlinattn.linearize import Distiller, plan_student

from .test_distiller import swapped
from .test_student import BACKBONES

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')

CONFIG = Path(__file__).parents[2] / 'configs/smca/smca_nano_bccd.py'
SIZES = ((64, 96), (40, 96), (64, 50))
ELU = dict(type='LinearAttention', feature_map='elu+1')


def smca(backbone: str = 'resnet', attn_cfg='SoftmaxAttention') -> Config:
    """A detector with 16 channels, dropout, and cells of 16 pixels."""
    cfg = Config.fromfile(CONFIG)
    cfg.default_scope = 'mmdet'
    if backbone == 'resnet':
        cfg.model.backbone.update(base_channels=4, stem_channels=4)
    else:
        cfg.model.backbone = dict(BACKBONES['mit'], out_indices=(2,), **OPTIONS[backbone])
    cfg.model.neck.update(in_channels=[16 if backbone == 'resnet' else 24], out_channels=16)
    sizes = dict(embed_dims=16, num_heads=2, feedforward_channels=32, dropout=0.1)
    cfg.model.encoder.layer_cfg.update(sizes, attn_cfg=attn_cfg)
    cfg.model.decoder.layer_cfg.update(sizes)
    cfg.model.update(positional_encoding=dict(num_feats=8), num_queries=5)
    cfg.model.bbox_head.embed_dims = 16
    return cfg


OPTIONS = dict(mit={}, linear=dict(attn_cfg='RALA'))


def distiller(objective: str, backbone: str = 'resnet', attn='MALA') -> Distiller:
    return swapped(smca(backbone), objective, attn)


def samples(sizes, canvas=None) -> list:
    return [
        BaseDataElement(metainfo=dict(img_shape=size, batch_input_shape=canvas or size))
        for size in sizes
    ]


def batch() -> tuple:
    """Images of three sizes, padded with zeros, and their samples."""
    images = torch.zeros(3, 3, 64, 96)
    for image, (height, width) in zip(images, SIZES):
        image[:, :height, :width] = torch.randn(3, height, width)
    return images, samples(SIZES, (64, 96))


def kinds(cfg: Config) -> list:
    model = build_model(cfg)
    built = getattr(model.backbone, 'layer_attn_cfgs', ())[:4]  # of five: out_indices=(2,)
    layers = [*built, *model.encoder.layer_attn_cfgs]
    return [layer['type'] if isinstance(layer, dict) else layer for layer in layers]


@pytest.mark.parametrize(
    'backbone, keep, replaced, parts',
    [
        ('resnet', [], [0, 1], ['encoder']),
        ('resnet', ['last1'], [0], ['encoder']),
        ('linear', [0], [1], ['encoder']),  # four linear layers do not count
        ('mit', [], [*range(6)], ['backbone', 'encoder']),
        ('mit', [1, 5], [0, 2, 3, 4], ['backbone', 'encoder']),
        ('mit', ['last2'], [*range(4)], ['backbone']),
        ('mit', [*range(4)], [4, 5], ['encoder']),
    ],
)
def test_layers_count_on_from_backbone_to_encoder(backbone, keep, replaced, parts):
    cfg = smca(backbone)
    plan = plan_student(cfg, 'MALA', keep)
    assert (plan.replaced, plan.parts) == (replaced, parts)
    before, after = kinds(cfg), kinds(plan.cfg)
    uncounted = 4 if backbone == 'linear' else 0
    changed = [i - uncounted for i in range(len(before)) if before[i] != after[i]]
    assert changed == replaced and all(after[i + uncounted] == 'MALA' for i in replaced)
    assert sorted(plan.replaced + plan.kept) == [*range(len(before) - uncounted)]


def test_refused_configs():
    with pytest.raises(ValueError, match='model.encoder, SMCAEncoder with RALA, has no softmax'):
        plan_student(smca(attn_cfg='RALA'), 'MALA')
    message = 'backbone, MixTransformer with RALA, and model.encoder, SMCAEncoder with MALA, have'
    with pytest.raises(ValueError, match=message):
        plan_student(smca('linear', 'MALA'), 'MALA')
    message = 'leaves nothing to replace: the softmax layers of SMCAEncoder are 0, 1'
    with pytest.raises(ValueError, match=message):
        plan_student(smca(), 'MALA', [0, 1])
    with pytest.raises(ValueError, match='names layer 6, but there are 6 layers'):
        plan_student(smca('mit'), 'MALA', [6])


def heads(linear, x) -> torch.Tensor:
    return linear(x).unflatten(-1, (-1, 2, 8)).permute(1, 2, 0, 3)  # [q k v, heads, N, d]


def test_attention_errors_by_formula_on_the_tokens_within_each_image():
    model = distiller('attentions', attn=ELU).eval()
    recorded = {}
    for i, layer in enumerate(model.teacher.encoder.layers):
        name = f'encoder.layers.{i}.self_attn'
        layer.register_forward_hook(lambda _, args, out, name=name: recorded.update({name: args}))
    with torch.no_grad():
        errors = model(*batch())
    assert errors.keys() == recorded.keys() and len(errors) == 2
    for name, (x, _, pos, mask) in recorded.items():
        assert mask.any(1).tolist() == [False, True, True]
        teacher, student = (m.get_submodule(name) for m in (model.teacher, model.student))
        ratios = []
        for tokens, places, padding in zip(x.detach(), pos, mask):
            tokens, places = tokens[~padding], places[~padding]
            outputs = []
            for attn in (teacher, student):
                q, k, _ = heads(attn.in_proj, tokens + places)
                v = heads(attn.in_proj, tokens)[2]
                if attn is teacher:
                    weights = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1)
                else:
                    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(1, 2)
                    weights = weights / weights.sum(-1, keepdim=True)
                outputs.append(attn.proj((weights @ v).transpose(0, 1).flatten(1)))
            expected, found = outputs
            ratios.append((found - expected).square().mean() / expected.square().mean())
        assert errors[name].item() == pytest.approx(sum(ratios).item() / 3, rel=1e-4)


@pytest.mark.parametrize('backbone', ['resnet', 'mit'])
def test_output_error_is_that_of_the_tokens_that_the_decoder_reads(backbone):
    model = distiller('outputs', backbone).eval()
    images, data_samples = batch()
    memories = []
    with torch.no_grad():
        for each in (model.teacher, model.student):
            each.decoder.register_forward_pre_hook(lambda _, args: memories.append(args[2]))
            each(images, data_samples, mode='tensor')
        errors = model(images, data_samples)
    expected, found = memories
    ratios = []
    for target, tokens, padding in zip(expected.tokens, found.tokens, expected.mask):
        target, tokens = target[~padding], tokens[~padding]
        ratios.append((tokens - target).square().sum() / target.square().sum())
    assert [*errors] == ['encoder output 0']
    assert errors['encoder output 0'].item() == pytest.approx(sum(ratios).item() / 3, rel=1e-4)


@pytest.mark.parametrize('objective', ['attentions', 'outputs'])
def test_padded_batch_is_the_mean_of_its_images_alone(objective, monkeypatch):
    """Cells of features that see their own pixels alone: padding changes nothing at all."""
    model = distiller(objective).eval()
    weight = torch.randn(16, 3, 16, 16)
    for each in (model.teacher, model.student):
        monkeypatch.setattr(
            each, 'extract_feat', lambda images: (F.conv2d(images, weight, None, 16),)
        )
    sizes = ((64, 96), (32, 96), (64, 48))
    images, alone = torch.randn(3, 3, 64, 96), []
    with torch.no_grad():
        for image, (height, width) in zip(images, sizes):
            alone.append(model(image[None, :, :height, :width], samples([(height, width)])))
        together = model(images, samples(sizes, (64, 96)))
        unmasked = model(images, samples([(64, 96)] * 3))
    for name, error in together.items():
        mean = sum(one[name] for one in alone) / 3
        assert error.item() == pytest.approx(mean.item(), rel=1e-4)
        assert abs(unmasked[name] / mean - 1) > 0.01


@pytest.mark.parametrize(
    'objective, backbone, trained',
    [
        ('attentions', 'resnet', ('encoder.layers.0.self_attn.', 'encoder.layers.1.self_attn.')),
        ('outputs', 'resnet', ('encoder.',)),
        ('outputs', 'mit', ('backbone.', 'encoder.')),
    ],
)
def test_only_replaced_parts_learn_and_their_errors_fall(objective, backbone, trained):
    model = distiller(objective, backbone).train()
    before = copy.deepcopy(model.state_dict())
    inputs = batch()
    losses = [sum(model(*inputs, mode='loss').values()) for _ in range(2)]
    assert losses[0] == losses[1]  # without dropout
    errors = model.eval()(*inputs)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    model.train()
    for _ in range(15):
        optimizer.zero_grad()
        sum(model(*inputs, mode='loss').values()).backward()
        optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    expected = tuple(f'student.{name}' for name in trained)
    learnt = {f'student.{n}' for n, p in model.student.named_parameters() if p.requires_grad}
    assert changed == {name for name in learnt if name.startswith(expected)} == learnt
    assert all(any(key.startswith(name) for key in changed) for name in expected)
    after = model.eval()(*inputs)
    assert all(after[name] < 0.9 * errors[name] for name in errors)


@pytest.mark.parametrize('objective', ['attentions', 'outputs'])
def test_mixed_precision_on_the_cpu(objective):
    model, inputs, types = distiller(objective).train(), batch(), []
    attention = model.student.get_submodule(model.attentions[0])
    attention.register_forward_hook(lambda _, args, out: types.append(out.dtype))
    (exact,) = model(*inputs, mode='loss').values()
    wrapper = CPUAmpOptimWrapper(optimizer=torch.optim.SGD(attention.parameters(), 0.1))
    with wrapper.optim_context(model):
        (loss,) = model(*inputs, mode='loss').values()
    assert types == [torch.float32, torch.bfloat16] and loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)

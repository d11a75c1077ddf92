"""The direct swap, and the two objectives against their definitions."""

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.linearize import Distiller, plan_student, swap_weights
from mmlinattn.models.layers import MALA, SoftmaxAttention

from .test_student import BACKBONES, config


def distiller(name: str, objective: str, **options) -> Distiller:
    return swapped(config(dict(BACKBONES[name], **options)), objective, keep=['last1'])


def swapped(cfg: Config, objective: str, attn='MALA', keep=()) -> Distiller:
    """Teacher with random weights, and the student after the direct swap."""
    student = plan_student(cfg, attn, keep).cfg
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = Distiller(cfg.model, student.model, objective)
    with torch.no_grad():
        for parameter in model.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    swap_weights(model.teacher.state_dict(), model.student)
    return model


def test_swap_copies_all_that_fits():
    model = distiller('mit', 'outputs')
    teacher, student = model.teacher.state_dict(), copy.deepcopy(model.student)
    report = swap_weights(teacher, student)
    state = student.state_dict()
    for name, value in state.items():
        if name in teacher and teacher[name].shape == value.shape:
            assert name in report.copied and torch.equal(value, teacher[name]), name
    # Queries, keys and values of MALA, which has a gate besides.
    weights = state['backbone.stages.0.0.attn.in_proj.weight']
    assert torch.equal(weights[:24], teacher['backbone.stages.0.0.attn.in_proj.weight'])
    assert 'backbone.stages.0.0.attn.sr.weight' in report.dropped
    assert {*report.copied, *report.partial, *report.fresh} == state.keys()
    assert '4 start fresh' not in str(report)
    assert 'are not used: backbone.stages.0.0.attn.' in str(report)


@pytest.mark.parametrize('bias', [True, False])
def test_swapped_attention_begins_without_gate_and_local_position(bias):
    teacher = SoftmaxAttention(8, 2, qkv_bias=bias)
    plain, student = MALA(8, 2, gate=None, lepe=0, qkv_bias=bias), MALA(8, 2)
    for attn in (plain, student):
        swap_weights(teacher.state_dict(), attn)
    x = torch.randn(2, 12, 8)
    assert torch.allclose(student(x, (3, 4)), plain(x, (3, 4)), atol=1e-6)


@pytest.mark.parametrize('name', ['vit', 'mit', 'swin'])
def test_attention_errors_are_those_on_the_teachers_inputs(name):
    """Block by block: the input of the teacher's attention by its norm, both attentions on it."""
    model = distiller(name, 'attentions').eval()
    images, expected = torch.randn(2, 3, 32, 32), {}

    def record(block_name):
        def hook(block, args, output):
            x, hw_shape, *extra = args
            x = block.norm1(x)
            extra = dict(num_extra_tokens=extra[0]) if extra else {}
            student = model.student.get_submodule(f'{block_name}.attn')
            teacher, found = (a(x, hw_shape, **extra).double() for a in (block.attn, student))
            ratios = [((f - t) ** 2).mean() / (t**2).mean() for f, t in zip(found, teacher)]
            expected[f'{block_name}.attn'] = sum(ratios) / len(ratios)

        return hook

    for attention in model.attentions:
        block_name = attention.removesuffix('.attn')
        model.teacher.get_submodule(block_name).register_forward_hook(record(block_name))
    with torch.no_grad():
        model.teacher.backbone(images)
        recorded = dict(expected)
        errors = model(images)
    assert errors.keys() == recorded.keys() and len(errors) >= 3
    for attention, value in recorded.items():
        assert errors[attention].item() == pytest.approx(value.item(), rel=1e-4)


def test_output_errors_are_those_of_the_backbones():
    model = distiller('mit', 'outputs')
    images = torch.randn(2, 3, 32, 32)
    pairs = [*zip(model.student.backbone(images), model.teacher.backbone(images))]
    expected = sum(
        ((f - t) ** 2).flatten(1).sum(1).div((t**2).flatten(1).sum(1)).mean() for f, t in pairs
    )
    (loss,) = model(images, mode='loss').values()
    assert len(pairs) == 4 and loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_phase_b_trains_the_whole_student_without_noise():
    model = distiller('vit', 'outputs', drop_path_rate=0.5, frozen_stages=2).train()
    images = torch.randn(2, 3, 32, 32)
    losses = [model(images, mode='loss')['loss_outputs'] for _ in range(2)]
    assert losses[0] == losses[1]
    losses[0].backward()
    missing = [n for n, p in model.student.backbone.named_parameters() if p.grad is None]
    assert not missing and all(p.grad is None for p in model.teacher.parameters())


def test_bad_objective_and_equal_models():
    vit = config(BACKBONES['vit']).model
    with pytest.raises(ValueError, match="objective must be one of .*, got 'maps'"):
        Distiller(vit, vit, 'maps')
    with (
        DefaultScope.overwrite_default_scope('mmpretrain'),
        pytest.raises(ValueError, match='the same attentions: nothing to distil'),
    ):
        Distiller(vit, vit)
    assert MODELS.get('Distiller') is Distiller


def test_cores_are_distilled_by_the_outputs_alone():
    """Class token and registers are the teacher's; places of the student change in training."""
    cfg, attn = config(dict(BACKBONES['vit'], num_registers=2)), dict(type='CoreAttention')
    with pytest.raises(ValueError, match="share cores .* set objective='outputs'"):
        swapped(cfg, 'attentions', attn)
    model, images = swapped(cfg, 'outputs', attn), torch.randn(2, 3, 32, 32)
    student, teacher = (m.backbone for m in (model.student, model.teacher))
    assert torch.equal(student.embed.registers, teacher.embed.registers)
    losses = [model(images, mode='loss')['loss_outputs'] for _ in range(3)]
    assert losses[0] != losses[1] and not any(layer.training for layer in student.layers)
    losses[0].backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert model.eval()(images) == model(images)

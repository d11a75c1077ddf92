"""The operators of a training step, against counts by hand and against a step that computes."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18

from benchmarks.measure import peak_memory
from mmlinattn.analysis import analyse
from mmlinattn.analysis.operators import training_step
from mmlinattn.models.backbones import RAVLT

H, W, B, C = 32, 48, 2, 8
SMALL = dict(embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, C, 4, stride=4)
        self.qkv = nn.Linear(C, 3 * C)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def products(step, backward):
    return sum(o.products for o in step.operators if o.backward is backward)


def test_products_by_hand():
    step = training_step(Attention(), (H, W), B)
    tokens = (H // 4) * (W // 4)
    conv, linear = B * tokens * 48 * C, B * tokens * C * 3 * C
    attention = B * tokens * tokens * 2 * C
    assert products(step, False) == conv + linear + attention
    # Weights and inputs; the image needs no gradient; Q K^T is computed again.
    assert products(step, True) == conv + 2 * linear + attention * 5 // 2
    assert not step.uncounted


def test_products_of_a_whole_model_are_those_that_torch_counts():
    # Without groups: torch counts the gradient of a depth-wise weight as that of a full one.
    model = resnet18(num_classes=10).eval()
    step = training_step(model, (64, 96), B)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(B, 3, 64, 96)).sum().backward()
    assert 2 * (products(step, False) + products(step, True)) == counter.get_total_flops()


def test_a_depthwise_convolution_by_hand():
    model = nn.Sequential(nn.Conv2d(3, C, 1), nn.Conv2d(C, C, 3, padding=1, groups=C))
    step = training_step(model, (H, W), B)
    point, depth = B * H * W * 3 * C, B * H * W * 9 * C
    assert products(step, False) == point + depth
    assert products(step, True) == point + 2 * depth


def test_a_backbone_has_about_twice_the_products_backward_and_gradients_everywhere():
    model = RAVLT(SMALL, norm_cfg=dict(type='BN'))
    step = training_step(model, (64, 96), B)
    assert 1.9 * products(step, False) < products(step, True) < 2.2 * products(step, False)
    assert products(step, False) == B * analyse(model, (64, 96)).total


def test_a_frozen_stage_has_no_backward_pass():
    model = nn.Sequential(nn.Conv2d(3, C, 1), nn.Conv2d(C, C, 1))
    model[0].requires_grad_(False)
    step = training_step(model, (H, W))
    assert products(step, True) == H * W * C * C  # one weight, and no input of it


@pytest.mark.parametrize('dtype, size', [(None, 4), (torch.bfloat16, 2)])
def test_bytes_and_saved_by_hand(dtype, size):
    model = nn.Sequential(nn.Conv2d(3, C, 1, bias=False), nn.Conv2d(C, 1, 1, bias=False))
    step = training_step(model, (H, W), B, dtype)
    image, inner = B * 3 * H * W * size, B * C * H * W * size
    weights = 0 if dtype is None else (3 * C + C) * size  # copies in the other type
    assert step.saved == image + inner + weights
    first = next(o for o in step.operators if o.name == 'aten::convolution')
    assert first.nbytes == image + inner + 3 * C * size
    assert all(o.nbytes == 0 for o in step.operators if 'view' in o.name or o.name == 'aten::t')


def test_checkpointing_saves_less_and_computes_again():
    class Again(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.again, self.stem = again, nn.Conv2d(3, C, 1)
            self.body = nn.Sequential(*(nn.Conv2d(C, C, 1) for _ in range(4)))

        def forward(self, x):
            x = self.stem(x)
            return checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)

    plain, again = (training_step(Again(value), (H, W)) for value in (False, True))
    assert again.saved < plain.saved
    # What the last convolution gives is not needed.
    assert products(again, True) - products(plain, True) == 3 * H * W * C * C


def test_the_peak_by_hand():
    model = nn.Sequential(nn.Conv2d(3, C, 1, bias=False), nn.Conv2d(C, 1, 1, bias=False))
    step = training_step(model, (H, W), B)
    image, inner, out = (channels * B * H * W * 4 for channels in (3, C, 1))
    # In the backward pass of the second: its result and all gradients.
    assert step.peak == image + inner + out + out + inner + C * 4


def test_a_frozen_stage_saves_nothing():
    model = nn.Sequential(nn.Conv2d(3, C, 1), nn.ReLU(), nn.Conv2d(C, C, 1))
    model[0].requires_grad_(False)
    step = training_step(model, (H, W), checkpointing=['ReLU'])
    assert step.saved == C * H * W * 4 <= step.peak


@pytest.mark.parametrize('again', [False, True])
def test_the_peak_is_what_a_real_step_allocates(again):
    model = RAVLT(SMALL, norm_cfg=dict(type='BN'), with_cp=again)
    estimated = training_step(model, (128, 96), B).peak
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))
    images = torch.randn(B, 3, 128, 96)

    def step():
        torch.autograd.backward([out.sum() for out in model(images)])

    step()
    measured = peak_memory(step, torch.device('cpu')) + images.nbytes
    assert estimated == pytest.approx(measured, rel=0.1)


def test_blocks_of_a_class_are_those_that_with_cp_computes_again():
    one, other, plain = (
        training_step(RAVLT(SMALL, norm_cfg=dict(type='BN'), with_cp=cp), (64, 96), B, None, names)
        for cp, names in ((True, ()), (False, ['RAVLTBlock']), (False, ()))
    )
    assert (one.saved, one.peak, one.products) == (other.saved, other.peak, other.products)
    assert one.saved < plain.saved and one.peak < plain.peak and one.products > plain.products
    with pytest.raises(ValueError, match="'RAVLTBlok'; did you mean RAVLTBlock"):
        training_step(RAVLT(SMALL), (64, 96), checkpointing=['RAVLTBlok'])


def test_the_model_stays_as_it_is():
    model = Attention()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training_step(model, (H, W))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(shape=(16, 64)), 'at least 32x32'),
        (dict(shape=(64, 64), batch=0), 'batch must be positive, got 0'),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        training_step(Attention(), **arguments)
    with pytest.raises(ValueError, match='no parameter to train'):
        training_step(Attention().requires_grad_(False), (64, 64))

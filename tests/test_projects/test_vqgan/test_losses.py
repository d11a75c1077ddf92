"""Losses and the discriminator against formulas written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.projects.vqgan import (
    StyleDiscriminator,
    VGGPerceptualLoss,
    adversarial_losses,
    logit_laplace_loss,
    perceptual_loss,
)

# torchvision's VGG-16: channels of the convolutions, M for pooling.
VGG = (64, 64, 'M', 128, 128, 'M', *(256,) * 3, 'M', *(512,) * 3, 'M', *(512,) * 3)


def test_logit_laplace():
    def logit(x):
        x = 0.8 * x + 0.1
        return math.log(x / (1 - x))

    made, image = torch.tensor([0.3, 1.0, -0.05]), torch.tensor([0.7, 0.0, 0.0])
    expected = sum(abs(logit(a) - logit(b)) for a, b in zip(made.tolist(), image.tolist())) / 3
    assert float(logit_laplace_loss(made, image)) == pytest.approx(expected, rel=1e-5)
    far = torch.tensor([9.0, -9.0], requires_grad=True)
    logit_laplace_loss(far, torch.tensor([0.2, 0.8])).backward()
    assert far.grad.tolist() == [0, 0]


def test_adversarial():
    fake, real = torch.tensor([0.5, -2.0]), torch.tensor([3.0, 0.25])

    def cost(x):
        """Return -log(sigmoid) of what a player wants to be taken for real or fake."""
        return math.log(1 + math.exp(-x))

    expected = (cost(0.5) + cost(-2)) / 2, (cost(3) + cost(0.25) + cost(-0.5) + cost(2)) / 2
    assert [*map(float, adversarial_losses(fake, real))] == pytest.approx([*expected])


def vgg() -> nn.Module:
    layers, width = [], 3
    for channels in VGG:
        if channels == 'M':
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU()]
            width = channels
    return nn.Sequential(*layers)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A VGG with random weights, its file as torchvision writes it, and one as LPIPS does."""
    folder, model = tmp_path_factory.mktemp('vgg'), vgg()
    weights = {f'features.{k}': v for k, v in model.state_dict().items()}
    torch.save({**weights, 'classifier.0.bias': torch.zeros(3)}, folder / 'vgg.pth')
    return model, folder / 'vgg.pth'


def test_perceptual_loss_is_lpips_without_weights(files):
    model, path = files
    loss = VGGPerceptualLoss(str(path))
    image = torch.rand(2, 3, 16, 16)
    made = torch.rand(2, 3, 16, 16, requires_grad=True)
    with pytest.raises(RuntimeError, match=r'has no weights: call init_weights\(\)'):
        loss(made, image)
    loss.init_weights()
    shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]  # of LPIPS, for [-1, 1]
    scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
    x, y, expected = (2 * made - 1 - shift) / scale, (2 * image - 1 - shift) / scale, 0
    for layer, following in zip(model, [*model[1:], nn.MaxPool2d(2)]):
        x, y = layer(x), layer(y)
        if isinstance(following, nn.MaxPool2d):
            difference = (F.normalize(x, dim=1) - F.normalize(y, dim=1)) ** 2
            expected = expected + difference.sum(1).mean()
    found = loss(made, image)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    (grad,) = torch.autograd.grad(found, made)
    assert grad.abs().sum() > 0 and not loss.state_dict()
    black = torch.zeros(1, 4, 2, 2, requires_grad=True)  # features of a pixel that are all 0
    assert torch.autograd.grad(perceptual_loss._unit(black).sum(), black)[0].isfinite().all()


def test_missing_and_wrong_weights(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        VGGPerceptualLoss(str(tmp_path / 'none.pth')).init_weights()
    for part in ('model.perceptual.weights', 'vgg16-397923af.pth', 'model.perceptual=None'):
        assert part in str(caught.value)
    wrong = str(tmp_path / 'wrong.pth')
    torch.save({'lin0.model.1.weight': torch.rand(1, 64, 1, 1)}, wrong)
    with pytest.raises(CheckpointError, match=r'features.0.weight is missing, \(64, 3, 3, 3\)'):
        VGGPerceptualLoss(wrong).init_weights()


def test_discriminator_halves_the_map_and_keeps_variances():
    model = StyleDiscriminator(img_size=(32, 64), base_channels=16, max_channels=64)
    x = torch.randn(4, 3, 32, 64)
    x = model.stem(x)
    for block in model.blocks:
        half = block(x)
        assert half.shape[-2:] == (x.shape[-2] // 2, x.shape[-1] // 2)
        # Equalised weights and the gain keep the scale; the low-pass filter takes some of it.
        assert 0.1 < float(half.var() / x.var()) < 2
        x = half
    assert model.training and model(torch.rand(4, 3, 32, 64)).shape == (4,)


def test_discriminator_learns_and_filters_before_it_drops_pixels():
    model = StyleDiscriminator(img_size=16, base_channels=8, max_channels=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(40):
        real = torch.rand(8, 3, 1, 1).expand(8, 3, 16, 16)
        logits = model(torch.cat([real, real + 0.3 * torch.randn(8, 3, 16, 16)]))
        loss = adversarial_losses(*logits.chunk(2)[::-1])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.5
    # The highest frequency does not reach the half-size map.
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * 2.0 - 1
    skip = model.blocks[0].skip
    out = skip(board.expand(1, 8, 16, 16))
    assert out[..., 1:-1, 1:-1].abs().max() < 1e-5


@pytest.mark.parametrize('img_size', [0, 48, 2, (32, 44)])
def test_sizes_of_images_of_the_discriminator(img_size):
    with pytest.raises(ValueError, match='img_size'):
        StyleDiscriminator(img_size)
    with pytest.raises(ValueError, match='the discriminator is for images of'):
        StyleDiscriminator(8, 4)(torch.rand(1, 3, 16, 16))

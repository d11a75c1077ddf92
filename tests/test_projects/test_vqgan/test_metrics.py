"""Metrics of reconstructions against scikit-image, scipy and torch-fidelity."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from mmlinattn.projects.vqgan import (
    FrechetDistance,
    ReconstructionMetric,
    frechet_distance,
    psnr,
    ssim,
)


def pictures(count: int = 2) -> torch.Tensor:
    """Smooth pictures with noise, (count, 3, 20, 24) uint8."""
    waves = torch.sin(torch.rand(count, 3, 1, 1) * 9 + torch.arange(480.0).view(20, 24) / 40)
    return (120 + 80 * waves + 9 * torch.randn(count, 3, 20, 24)).clamp(0, 255).byte()


def test_psnr_and_ssim_are_those_of_scikit_image():
    metrics = pytest.importorskip('skimage.metrics', reason='scikit-image is not required')
    image, other = pictures()
    arrays = [x.permute(1, 2, 0).numpy() for x in (image, other)]
    wanted = metrics.peak_signal_noise_ratio(*arrays, data_range=255)
    assert psnr(image, other) == pytest.approx(wanted, abs=1e-6)
    _, every = metrics.structural_similarity(
        *arrays, data_range=255, channel_axis=2, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False, full=True,
    )  # fmt: skip
    assert ssim(image, other) == pytest.approx(every[5:-5, 5:-5].mean(), abs=1e-6)
    with pytest.raises(ValueError, match=r'at least 11x11, got \(9, 24\)'):
        ssim(image[:, :9], other[:, :9])


def samples(images, others, codes=((0, 1), (1, 1))) -> list:
    return [
        dict(gt_img=a, pred_img=b, codes=torch.tensor(c), num_codes=8)
        for a, b, c in zip(images, others, codes)
    ]


def test_codes_are_counted_over_all_images():
    images, others = pictures(), pictures()
    metric = ReconstructionMetric()
    for sample in samples(images, others):
        metric.process({}, [sample])
    found = metric.evaluate(2)
    assert found['reconstruction/code_usage'] == 25
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert found['reconstruction/perplexity'] == pytest.approx(np.exp(entropy))
    wanted = np.mean([psnr(a, b) for a, b in zip(images, others)])
    assert found['reconstruction/psnr'] == pytest.approx(wanted)


def test_frechet_distance_of_the_formula():
    linalg = pytest.importorskip('scipy.linalg')
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)) @ rng.normal(size=(5, 5))
    y = rng.normal(size=(30, 5)) + 0.5
    root = linalg.sqrtm(np.cov(x.T) @ np.cov(y.T)).real
    wanted = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(np.cov(x.T) + np.cov(y.T) - 2 * root)
    assert frechet_distance(x, y) == pytest.approx(wanted)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match='at least 2 images, got 1'):
        frechet_distance(x[:1], y)


class Pooled(nn.Module):
    """Mean colours in place of Inception's features."""

    def forward(self, images):
        return (images.double().mean((2, 3)),)


def test_distance_of_pictures(monkeypatch):
    module = sys.modules[FrechetDistance.__module__]
    monkeypatch.setattr(module, '_inception', lambda path: Pooled())
    metric, images = FrechetDistance('inception.pth'), pictures(6)
    metric.process({}, samples(images, images, codes=[(0,)] * 6))
    assert metric.evaluate(6)['reconstruction/fid'] == pytest.approx(0, abs=1e-6)
    metric.process({}, samples(images, images.flip(0) // 2, codes=[(0,)] * 6))
    assert metric.evaluate(6)['reconstruction/fid'] > 0
    images = [image[:, :size] for image, size in zip(images, (20, 20, 11, 20, 11, 11))]
    others = [image // 2 for image in images]
    metric.process({}, samples(images, others, codes=[(0,)] * 6))
    means = [np.stack([x.double().mean((1, 2)) for x in part]) for part in (images, others)]
    wanted = pytest.approx(frechet_distance(*means))
    assert metric.evaluate(6)['reconstruction/fid'] == wanted


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='weights-inception-2015-12-05-6726825d.pth'):
        FrechetDistance(str(tmp_path / 'none.pth'))


def test_inception_is_that_of_torch_fidelity(tmp_path):
    inception = pytest.importorskip(
        'torch_fidelity.feature_extractor_inceptionv3', reason='torch-fidelity is an extra'
    )
    path = tmp_path / 'inception.pth'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, 'load_state_dict_from_url', lambda *a, **k: {})
        patch.setattr(inception.FeatureExtractorInceptionV3, 'load_state_dict', lambda *a: None)
        network = inception.FeatureExtractorInceptionV3('inception', ['2048'])
    torch.save(network.state_dict(), path)
    metric = FrechetDistance(inception=str(path))
    images, others = pictures(3), pictures(3)
    metric.process({}, samples(images, others, codes=[(0,)] * 3))
    found = metric.evaluate(3)
    assert list(found) == ['reconstruction/fid']
    features = [network(x)[0].numpy() for x in (images, others)]
    assert found['reconstruction/fid'] == pytest.approx(frechet_distance(*features), rel=1e-5)

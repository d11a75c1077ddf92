"""Frechet distance between the features of images and of their reconstructions."""

import os
import tempfile
from itertools import groupby
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from torch import nn

from ...checkpoints import load_state_dict
from ...utils.messages import log_warning

INCEPTION = (
    'https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/'
    'weights-inception-2015-12-05-6726825d.pth'
)


def frechet_distance(features: np.ndarray, other: np.ndarray) -> float:
    """Return the squared Frechet distance of two sets of features (Heusel et al., NeurIPS 2017).

    ``|m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2))`` with means m and covariances S, in float64.

    Args:
        features, other: (N, D), N of at least 2.

    Raises:
        ValueError: there are fewer than two features.

    Example:
        >>> features = np.array([[0.0, 0.0], [2.0, 2.0]])
        >>> round(frechet_distance(features, features + 1), 6)
        2.0
    """
    if min(len(features), len(other)) < 2:
        raise ValueError(f'a covariance needs at least 2 images, got {len(features)}')
    x, y = features.astype(np.float64), other.astype(np.float64)
    mean = np.square(x.mean(0) - y.mean(0)).sum()
    # With S1 = A^T A and S2 = B^T B, tr (S1 S2)^(1/2) is the sum of the singular values of A B^T.
    # Roots of the eigenvalues of S1 S2 would turn rounding into errors where S1 is singular.
    centred = ((t - t.mean(0)) / np.sqrt(len(t) - 1) for t in (x, y))
    # np.asarray returns the array itself: numpy's types lack mode='r'.
    a, b = (np.asarray(np.linalg.qr(t, mode='r')) for t in centred)
    mixed = np.linalg.svd(a @ b.T, compute_uv=False).sum()
    return float(mean + np.square(a).sum() + np.square(b).sum() - 2 * mixed)


@METRICS.register_module()
class FrechetDistance(BaseMetric):
    """Reconstruction FID, ``reconstruction/fid``: the Frechet distance between test images and
    their reconstructions, on the features of torch-fidelity's Inception-v3.

    Args:
        inception: file with torch-fidelity's weights of Inception-v3. Nothing is downloaded.
        collect_device, prefix: see MMEngine's BaseMetric.

    Raises:
        FileNotFoundError: the file does not exist.
        ImportError: torch-fidelity is not installed.
        ValueError: fewer than two images.
        mmlinattn.checkpoints.CheckpointError: the file cannot be read.

    Example:
        >>> test_evaluator = [
        ...     dict(type='ReconstructionMetric'),
        ...     dict(type='FrechetDistance',
        ...          inception='checkpoints/weights-inception-2015-12-05-6726825d.pth')]
    """

    default_prefix = 'reconstruction'

    def __init__(
        self, inception: str, collect_device: str = 'cpu', prefix: Optional[str] = None
    ) -> None:
        super().__init__(collect_device, prefix)
        self.network = _inception(inception)

    @torch.no_grad()
    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for _, group in groupby(data_samples, lambda sample: sample['gt_img'].shape):
            part = [*group]  # of one size
            images = torch.stack([s[name] for name in ('gt_img', 'pred_img') for s in part])
            self.network.to(images.device)
            features = self.network(images)[0].double().cpu().numpy()
            self.results.extend(zip(*features.reshape(2, len(part), -1)))

    def compute_metrics(self, results: List[tuple]) -> Dict[str, float]:
        real, fake = map(np.stack, zip(*results))
        if len(real) <= real.shape[1]:
            log_warning(
                f'fid of {len(real)} images with {real.shape[1]} features: the covariance '
                'is singular, and the distance depends on the number of images'
            )
        return dict(fid=frechet_distance(real, fake))


def _inception(path: str) -> nn.Module:
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f'FrechetDistance.inception: {path!r} does not exist; torch-fidelity has it at '
            f'{INCEPTION}. Without it, remove FrechetDistance from test_evaluator'
        )
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ModuleNotFoundError as error:
        raise ImportError(
            'FrechetDistance.inception needs torch-fidelity: pip install torch-fidelity'
        ) from error
    # torch-fidelity unpickles code; what it reads is therefore written here.
    weights, _ = load_state_dict(path)
    with tempfile.NamedTemporaryFile(suffix='.pth') as file:
        torch.save(weights, file.name)
        return FeatureExtractorInceptionV3(
            'inception-v3-compat', ['2048'], feature_extractor_weights_path=file.name
        ).eval()

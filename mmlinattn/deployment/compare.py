"""What exported files are compared on, and how."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import Tensor

from ..engine.preflight.data import check_data

Outputs = Dict[str, Tensor]


def fit(image: Tensor, shape: Sequence[int]) -> Tensor:
    """An image (B, 3, h, w), resized."""
    return F.interpolate(image, tuple(shape), mode='bilinear', antialias=True)


def difference(found: Outputs, expected: Outputs) -> float:
    """Largest difference of the outputs: of numbers, over the largest of them; of labels, the
    share that differs; of detections, see :func:`match`.

    Raises:
        ValueError: other outputs or shapes.
    """
    if found.keys() != expected.keys():
        raise ValueError(f'outputs are {list(found)} in place of {list(expected)}')
    for name, a in found.items():
        if a.shape != expected[name].shape:
            raise ValueError(f'{name} is {tuple(a.shape)}, not {tuple(expected[name].shape)}')
    if 'count' in expected:
        return max(match(found, expected), default=0.0)
    return max(_largest(found[name], b) for name, b in expected.items())


def _largest(a: Tensor, b: Tensor) -> float:
    if not b.is_floating_point():
        return float((a != b).float().mean())
    scale = b.abs().max().clamp(min=torch.finfo(b.dtype).tiny)
    return float((a - b).abs().max().nan_to_num(float('inf')) / scale)


def match(found: Outputs, expected: Outputs, sure: float = 0.5) -> List[float]:
    """Differences of the detections of a batch, in whatever order they are found.

    One of each expected box whose score is at least ``sure`` times the best one: that of the
    nearest box of its label, over the largest coordinate, of their scores, or of their masks.
    """
    differences = []
    for image in range(len(expected['count'])):
        a, b = ({name: out[image] for name, out in outs.items()} for outs in (found, expected))
        scale, scores = b['boxes'].abs().max().clamp(min=1), b['scores']
        for i in ((scores > 0) & (scores >= sure * scores.max())).nonzero().flatten():
            far = (a['boxes'] - b['boxes'][i]).abs().amax(-1) / scale
            far = far.where(a['labels'] == b['labels'][i], float('inf'))
            nearest = int(far.argmin())
            parts = [far[nearest], (a['scores'][nearest] - scores[i]).abs()]
            if 'masks' in b:
                parts.append((a['masks'][nearest] - b['masks'][i]).abs().max())
            differences.append(max(map(float, parts)))
    return differences


def sample_image(cfg: Config, path: Optional[str] = None) -> Tuple[Tensor, str]:
    """An image to measure with, (1, 3, h, w) float32, RGB, 0..255, and what it is.

    Args:
        cfg: the config; the first image of its test set, where that is here, else noise.
        path: an image file instead.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that is no image.
    """
    if path is not None:
        return _read_image(path), path
    try:
        check_data(cfg, 'test_dataloader')
    except FileNotFoundError:
        noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        return fit(noise, (512, 512)).clamp(0, 1) * 255, 'noise, as the test set is not here'
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return dataset[0]['inputs'].flip(0)[None].float(), 'the first image of the test set'


def _read_image(path: str) -> Tensor:
    import mmcv

    if not Path(path).is_file():
        raise FileNotFoundError(f'--sample {path} does not exist')
    pixels = mmcv.imread(path)  # BGR
    if pixels is None:
        raise ValueError(f'--sample {path} is no image')
    return torch.from_numpy(pixels).permute(2, 0, 1).flip(0)[None].float()

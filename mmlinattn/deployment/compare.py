"""Comparison of the outputs of exported files and models."""

from itertools import islice
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import mmcv
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import Tensor

from ..engine.preflight.data import check_plain, dataset_configs, folders_of
from ..engine.preflight.sample_loading import base_datasets, outside_file
from .exported_file import Outputs


def fit(image: Tensor, shape: Sequence[int]) -> Tensor:
    """Return images (B, 3, h, w) resized to ``shape``."""
    return F.interpolate(image, tuple(shape), mode='bilinear', antialias=True)


def difference(found: Outputs, expected: Outputs) -> float:
    """Return the largest difference of the outputs.

    For floating-point outputs it is relative to the largest value; for labels it is the fraction
    that differs; for detections see :func:`match`.

    Raises:
        ValueError: names or shapes of the outputs differ, except for detections.
    """
    if 'count' in expected:
        return max(match(found, expected) + match(expected, found), default=0.0)
    if found.keys() != expected.keys():
        raise ValueError(f'outputs are {list(found)} in place of {list(expected)}')
    for name, a in found.items():
        if a.shape != expected[name].shape:
            raise ValueError(f'{name} is {tuple(a.shape)}, not {tuple(expected[name].shape)}')
    return max(_largest(found[name], b) for name, b in expected.items())


def _largest(a: Tensor, b: Tensor) -> float:
    if not b.is_floating_point():
        return float((a != b).float().mean())
    scale = b.abs().max().clamp(min=torch.finfo(b.dtype).tiny)
    return float((a - b).abs().max().nan_to_num(float('inf')) / scale)


def match(found: Outputs, expected: Outputs, sure: float = 0.5) -> List[float]:
    """Return the differences of the detections of a batch, independent of their order.

    There is one value for each expected box whose score is at least ``sure`` times the best score.
    It compares the box with the nearest one of the same label: the largest difference of their
    coordinates (relative to the largest coordinate), scores and masks.
    """
    differences = []
    for image in range(len(expected['count'])):
        a, b = ({name: out[image] for name, out in outs.items()} for outs in (found, expected))
        scale, scores = b['boxes'].abs().max().clamp(min=1), b['scores']
        least = sure * scores.nan_to_num().max()
        for i in (~(scores <= 0) & ~(scores < least)).nonzero().flatten():  # with those of NaN
            far = (a['boxes'] - b['boxes'][i]).abs().amax(-1) / scale
            far = far.where(a['labels'] == b['labels'][i], float('inf'))
            nearest = int(far.argmin())
            parts = [far[nearest], (a['scores'][nearest] - scores[i]).abs()]
            if 'masks' in a.keys() & b.keys():
                parts.append((a['masks'][nearest] - b['masks'][i]).abs().max())
            largest = torch.stack(parts).max()  # NaN if one is
            differences.append(float(largest.nan_to_num(float('inf'), float('inf'))))
    return differences


def sample_image(cfg: Config, path: Optional[str] = None) -> Tuple[Tensor, str]:
    """Return a sample image (1, 3, h, w) float32, RGB, 0..255, and its description.

    Args:
        cfg: config; the sample is the first image of its test set if that exists, else noise.
        path: image file to use instead.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not an image, or the test set is here and cannot be read.
    """
    if path is not None:
        if '://' not in path and not Path(path).is_file():
            what = 'is a folder' if Path(path).is_dir() else 'does not exist'
            raise FileNotFoundError(f'--sample {path} {what}')
        try:
            pixels = mmcv.imread(path)  # BGR
        except OSError as error:
            raise ValueError(f'--sample {path} cannot be read: {error}') from error
        if pixels is None:
            raise ValueError(f'--sample {path} is no image')
        return torch.from_numpy(pixels).permute(2, 0, 1).flip(0)[None].float(), path
    dataset = (cfg.get('test_dataloader') or {}).get('dataset')
    missing = 'the config has no test set'
    try:
        if dataset:
            for part in dataset_configs(cfg.test_dataloader):
                check_plain(part)
            images = DATASETS.build(dataset)
            for part in islice(base_datasets(images), 1):
                if found := outside_file(part.get_data_info(0), folders_of(part)):
                    raise ValueError(f'{found.where} {found.what}')
            pixels = images[0]['inputs']
            return pixels.flip(0)[None].float(), 'the first image of the test set'
    except FileNotFoundError as error:
        missing = f'{error.filename or "the test set"} is not here'
    except Exception as error:  # each data set has its own exceptions
        text = f'the first image of the test set cannot be read ({error}): give --sample'
        raise ValueError(text) from error
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return fit(noise, (512, 512)).clamp(0, 1) * 255, f'noise, as {missing}'

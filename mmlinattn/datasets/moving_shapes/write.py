"""Files of a Moving Shapes set."""

import json
import os
from pathlib import Path
from typing import Union

import numpy as np

from ...utils import check_integer, staged_folder, write_json
from ..video.pyav import write_video
from .draw import CLASSES, MIN_SIZE, draw_clip

VERSION = 1  # increase it when the same parameters no longer give the same frames
SPLITS = ('train', 'val')
FPS = 8
DESCRIPTION = 'moving_shapes.json'


def generate_videos(
    root: Union[str, os.PathLike] = 'data/moving_shapes',
    num_train: int = 800,
    num_val: int = 200,
    size: int = 32,
    num_frames: int = 16,
    seed: int = 0,
) -> Path:
    """Write the videos to a directory, or do nothing if they are there.

    They are written to a hidden directory beside ``root``, which is renamed when complete.

    Args:
        root: directory to create; returned as a path.
        num_train, num_val: number of videos, at least 4; classes take turns.
        size: side of the frames in pixels, even and at least 32.
        num_frames: frames of a video, a multiple of 8.
        seed: random seed, at least 0.

    Raises:
        ValueError: an argument is out of range.
        FileExistsError: ``root`` is there and has something else, or other parameters.
        ImportError: PyAV is not installed.
    """
    parameters = dict(
        version=VERSION,
        num_train=check_integer('num_train', num_train, len(CLASSES)),
        num_val=check_integer('num_val', num_val, len(CLASSES)),
        size=check_integer('size', size, MIN_SIZE),
        num_frames=check_integer('num_frames', num_frames, 8),
        seed=check_integer('seed', seed, 0),
    )
    if size % 2:
        raise ValueError(f'size must be even for H.264, got {size}')
    target = Path(root).resolve()
    if target.exists():
        _check_same(target, parameters)
        print(f'Moving Shapes in {root} is up to date')
        return Path(root)
    with staged_folder(target) as staging:
        for i, split in enumerate(SPLITS):
            folder, lines = staging / 'videos' / split, []
            folder.mkdir(parents=True)
            for j in range(parameters[f'num_{split}']):
                label = j % len(CLASSES)
                clip = draw_clip(np.random.default_rng([seed, i, j]), label, size, num_frames)
                write_video(folder / f'{j:05}.mp4', clip, FPS)
                lines.append(f'{split}/{j:05}.mp4 {label}')
            (staging / f'{split}.txt').write_text('\n'.join(lines) + '\n')
        write_json(staging / DESCRIPTION, dict(parameters=parameters, classes=CLASSES))
    return Path(root)


def _check_same(root: Path, parameters: dict) -> None:
    try:
        found = json.loads((root / DESCRIPTION).read_text())['parameters']
    except (OSError, ValueError, TypeError, KeyError):
        found = None
    if found != parameters:
        what = 'no Moving Shapes set' if found is None else f'a set with other parameters, {found}'
        raise FileExistsError(f'{root} exists and is {what}: choose another folder or remove it')

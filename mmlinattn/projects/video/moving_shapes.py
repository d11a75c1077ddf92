"""Moving Shapes: a small synthetic set of videos whose classes only the order of frames tells.

A light shape goes twice around the centre of a dark picture by quarter turns, clockwise or
anticlockwise each time. It takes the same places in every class, so no single frame and no
unordered set of frames tells the class::

    python -m mmlinattn.projects.video.moving_shapes data/moving_shapes

The root contains::

    videos/{train,val}/*.mp4      train.txt, val.txt (FILE LABEL, as for MMAction2)
    moving_shapes.json
"""

import argparse
import os
from pathlib import Path
from typing import Union

import cv2
import numpy as np

from ...datasets.shapes.draw import OUTLINES, covered_area
from ...datasets.shapes.install import is_there
from ...utils import check_integer, staged_folder, write_json
from ...utils.command_line import errors_in_one_line
from .pyav import write_video

CLASSES = (
    'clockwise', 'anticlockwise', 'clockwise then anticlockwise', 'anticlockwise then clockwise',
)  # fmt: skip
TURNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # direction of the first and of the second round
MIN_SIZE = 32
DIAMETER, RADIUS, SHIFT = (0.24, 0.34), (0.24, 0.32), 0.06  # relative to the side of a frame
START, SPREAD = -np.pi / 2, np.pi / 4  # angle of the first place: near the top
VERSION = 1  # increase it when the same parameters no longer give the same frames
SPLITS = ('train', 'val')
FPS = 8
DESCRIPTION = 'moving_shapes.json'


def draw_clip(rng: np.random.Generator, label: int, size: int, num_frames: int) -> np.ndarray:
    """Draw a clip of a shape that goes twice around the centre, by quarter turns.

    Both rounds take the same four places, in the order that the class says. So the frames of a
    clip, taken one by one or in any order, have the same distribution in every class.

    Args:
        rng: the only source of randomness.
        label: index into :data:`CLASSES`.
        size: side of the square frames in pixels, at least 32.
        num_frames: frames, a multiple of 8: two rounds of four places.

    Returns:
        (num_frames, size, size, 3) uint8 RGB.

    Raises:
        ValueError: a size is out of range.

    Example:
        >>> draw_clip(np.random.default_rng(0), 2, 32, 16).shape
        (16, 32, 32, 3)
    """
    check_integer('size', size, MIN_SIZE)
    if check_integer('num_frames', num_frames, 8) % 8:
        raise ValueError(f'num_frames must be a multiple of 8, got {num_frames}')
    background, colour = _background(rng, size), rng.uniform(170, 255, 3)
    outline = OUTLINES[int(rng.integers(len(OUTLINES)))] * size * rng.uniform(*DIAMETER) / 2
    centre = size / 2 + rng.uniform(-SHIFT, SHIFT, 2) * size
    radius, phase = size * rng.uniform(*RADIUS), START + rng.uniform(-SPREAD, SPREAD)
    # Rows grow downwards, so growing angles turn clockwise.
    quarters = np.concatenate([turn * np.arange(4) for turn in TURNS[label]])
    angles = phase + np.repeat(quarters, num_frames // 8) * np.pi / 2
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for frame, angle in zip(frames, angles):
        place = centre + radius * np.array([np.cos(angle), np.sin(angle)])
        cover = covered_area(outline + place, size)[..., None] / 255
        noise = rng.normal(0, 2, background.shape)
        frame[:] = np.clip(background + cover * (colour - background) + noise, 0, 255)
    return frames


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a smooth background, darker than the shapes, (size, size, 3) float."""
    cells = rng.normal(0, 15, (4, 4, 3)) + rng.uniform(30, 110, 3)
    return cv2.resize(cells, (size, size), interpolation=cv2.INTER_CUBIC)


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
    if is_there(target, DESCRIPTION, 'Moving Shapes', parameters):
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


def main() -> None:
    """Write the videos as the arguments of the command say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('root', nargs='?', default='data/moving_shapes', help='folder to create (%(default)s)')
    add('--num-train', type=int, default=800, help='number of training videos (%(default)s)')
    add('--num-val', type=int, default=200, help='number of validation videos (%(default)s)')
    add('--size', type=int, default=32, help='side of the frames in pixels, even (%(default)s)')
    add('--num-frames', type=int, default=16, help='frames, a multiple of 8 (%(default)s)')
    add('--seed', type=int, default=0, help='seed of all randomness (%(default)s)')
    args = parser.parse_args()
    with errors_in_one_line():
        root = generate_videos(**vars(args))
    print(f'videos are in {root}')


if __name__ == '__main__':
    main()

#!/usr/bin/env python
"""Write the Moving Shapes videos, whose classes only the order of frames tells.

The same options give the same frames. Needs PyAV, the extra "video".
"""

import argparse

from mmlinattn.projects.video.moving_shapes import generate_videos
from mmlinattn.utils.command_line import errors_in_one_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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

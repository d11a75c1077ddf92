"""Write the Shapes data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet.

The same options give the same files. The exit code is 2 for a bad argument, an existing root or a
failure to write. It is 130 or 143 for an interrupt, after which no files remain.
"""

import argparse
import json
import os
import signal
import sys
from typing import List, Optional

from .draw import MIN_IMAGE_SIZE
from .install import generate


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog='python -m mmlinattn.datasets.shapes',
        description=__doc__.partition('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    smallest = f'side of the square images in pixels, at least {MIN_IMAGE_SIZE}'
    parser.add_argument('root', nargs='?', default='data/shapes', help='directory to create')
    parser.add_argument('--num-train', type=int, default=600, help='number of training images')
    parser.add_argument('--num-val', type=int, default=150, help='number of validation images')
    parser.add_argument('--image-size', type=int, default=128, help=smallest)
    parser.add_argument('--seed', type=int, default=0, help='seed of all randomness')
    parser.add_argument('--workers', type=int, default=os.cpu_count(), help='number of processes')
    parser.add_argument(
        '--force',
        action='store_true',
        help='write anew if root is a Shapes set or empty; anything else is never touched',
    )
    try:
        root = generate(**vars(parser.parse_args(argv)))
        counts = json.loads((root / 'shapes.json').read_text())['counts']
    except (OSError, ValueError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted, nothing written', file=sys.stderr)
        return 130
    print(f'Shapes is in {root}')
    for split, count in counts.items():
        classes = ', '.join(f'{n} {name}' for name, n in count['instances_by_class'].items())
        print(f'  {split}: {count["images"]} images, {count["instances"]} shapes ({classes})')
    return 0


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SystemExit runs the cleanup
    sys.exit(main())

"""Write the Shapes data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet."""

import argparse
import json

from ..datasets.shapes import generate


def main(args: argparse.Namespace) -> int:
    options = {name: value for name, value in vars(args).items() if name != 'debug'}
    root = generate(**options)
    counts = json.loads((root / 'shapes.json').read_text())['counts']
    print(f'Shapes is in {root}')
    for split, count in counts.items():
        classes = ', '.join(f'{n} {name}' for name, n in count['instances_by_class'].items())
        print(f'  {split}: {count["images"]} images, {count["instances"]} shapes ({classes})')
    return 0

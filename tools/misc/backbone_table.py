#!/usr/bin/env python
"""Write the table of docs/own_backbone.md: sizes, channels, strides and weights of the backbones.

python tools/misc/backbone_table.py            # update the page
python tools/misc/backbone_table.py --check    # exit code 1 if the page is outdated
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import torch

from mmlinattn.checkpoints.convert import SOURCES
from mmlinattn.models import backbones

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'own_backbone.md'
BEGIN, END = '<!-- table: tools/misc/backbone_table.py -->', '<!-- end of table -->'
SIDE = 224  # of the images that give channels and strides
# Release of each backbone: its name and address, and the ``--source`` of its conversion.
RELEASES = {
    'RAVLT': ('RAVLT', 'https://huggingface.co/aldjalkdf/RAVLT', 'rala'),
    'MAViT': ('MAViT', 'https://github.com/qhfan/MALA', 'mala'),
    'MLLA': ('MLLA', 'https://github.com/LeapLabTHU/MLLA', 'mlla'),
    'MixTransformer': ('SegFormer', 'https://github.com/NVlabs/SegFormer', 'mit'),
    'Swin': ('Swin', 'https://github.com/microsoft/Swin-Transformer', 'swin'),
    'CvT': ('CvT', 'https://github.com/microsoft/CvT', 'cvt'),
    'ViL': ('ViL', 'https://github.com/microsoft/vision-longformer', 'vil'),
    'deit': ('DeiT', 'https://github.com/facebookresearch/deit', 'deit'),
    'deit3': ('DeiT III', 'https://github.com/facebookresearch/deit', 'deit3'),
    'dinov2': ('DINOv2', 'https://github.com/facebookresearch/dinov2', 'dinov2'),
    'dinov3': ('DINOv3', 'https://github.com/facebookresearch/dinov3', 'dinov3'),
    'clip': ('CLIP', 'https://github.com/openai/CLIP', 'clip'),
    'siglip': ('SigLIP', 'https://huggingface.co/google/siglip-base-patch16-224', 'siglip'),
    'ViT': ('timm', 'https://github.com/huggingface/pytorch-image-models', 'vit'),
}


def kinds() -> Dict[str, type]:
    """Return the backbones of images of this package by name."""
    found = (getattr(backbones, name) for name in backbones.__all__)
    found = (kind for kind in found if getattr(kind, 'architectures', None))
    return {kind.__name__: kind for kind in found}


def facts(kind: type, arch: str) -> Tuple[List[int], List[int], int]:
    """Return channels and strides of all outputs, and the number of parameters."""
    with torch.device('meta'):
        model = kind(arch=arch).eval()
        outs = model(torch.empty(1, 3, SIDE, SIDE))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return [out.shape[1] for out in outs], [SIDE // out.shape[2] for out in outs], parameters


def row(kind: type, arch: str) -> str:
    """Return the line of an architecture."""
    sizes = {name: size for size, name in kind.arch_sizes.items()}
    names = ' or '.join(f"`'{name}'`" for name in filter(None, (sizes.get(arch), arch)))
    channels, strides, parameters = facts(kind, arch)
    own = arch.partition('-')[0]
    release = own if own in RELEASES else kind.__name__
    label, address, source = RELEASES[release]
    if source not in SOURCES:
        raise ValueError(f'{release}: there is no --source {source}')
    cells = [
        f'`{kind.__name__}`', names, f'`{channels}`', ', '.join(map(str, strides)),
        f'{parameters / 1e6:.1f} M', f'[{label}]({address})', f'`{source}`',
    ]  # fmt: skip
    return f'| {" | ".join(cells)} |'


def table() -> List[str]:
    """Return the lines of the table."""
    heads = ['`type`', '`arch`', 'output channels', 'strides', 'parameters']
    heads += ['released weights', '`--source`']
    align = ['---'] * 4 + ['---:'] + ['---'] * 2
    lines = [f'| {" | ".join(heads)} |', f'| {" | ".join(align)} |']
    return lines + [row(kind, arch) for kind in kinds().values() for arch in kind.architectures]


def page(text: str) -> str:
    """Return the page with an updated table."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return '\n'.join([before + BEGIN, '', *table(), '', END + after])


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='write nothing')
    check = parser.parse_args(argv).check
    text = PAGE.read_text(encoding='utf-8')
    wanted = page(text)
    if check:
        if text != wanted:
            print(f'{PAGE.name} has drifted: run python tools/misc/backbone_table.py')
        return int(text != wanted)
    PAGE.write_text(wanted, encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

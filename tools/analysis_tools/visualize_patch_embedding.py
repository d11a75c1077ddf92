"""Draw the principal components of the filters of a ViT's patch embedding, and the cosine
similarity of its position embeddings.

    python tools/analysis_tools/visualize_patch_embedding.py configs/vit/deit-b_8xb128_in1k.py \
        checkpoints/deit-b_in1k.pth --out embedding.png
"""

import argparse
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import load_model
from mmlinattn.models.backbones import ViT
from mmlinattn.utils.command_line import Parser, errors_in_one_line
from mmlinattn.visualization.patch_embedding import draw_patch_embedding


def parse_args() -> argparse.Namespace:
    parser = Parser(
        cfg_options=True, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', help='config of a model whose backbone is a ViT')
    parser.add_argument('checkpoint', help='checkpoint: a file or an address')
    parser.add_argument('--components', type=int, default=28, help='how many, first ones')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/patch_embedding.png'))
    args = parser.parse_args()
    suffixes = sorted(f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes())
    if args.out.suffix.lower() not in suffixes:
        parser.error(f'--out must end with one of {", ".join(suffixes)}, got {str(args.out)!r}')
    return args


def run(args: argparse.Namespace) -> Path:
    cfg = load_config(args.config, args.cfg_options)
    model, _ = load_model(cfg, args.checkpoint)
    backbone = getattr(model, 'backbone', None)
    if not isinstance(backbone, ViT):
        raise ValueError(
            f'{args.config} must have a ViT as its backbone, got {type(backbone).__name__}'
        )
    return draw_patch_embedding(args.out, backbone.embed, args.components)


def main() -> None:
    args = parse_args()
    with errors_in_one_line(args.debug):
        print(run(args))


if __name__ == '__main__':
    main()

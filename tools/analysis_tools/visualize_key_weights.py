"""Draw the weights of all keys for one query of an image, for each of several attentions.

    python tools/analysis_tools/visualize_key_weights.py configs/zoo/ravlt-nano_shapes.py \
        --checkpoints work_dirs/zoo/weights/ravlt-nano_shapes_*_seed0.pth --out weights.png

The checkpoints are those of `make zoo`, one per attention; without them the weights are random
(--seed). Attentions that the backbone does not support are left out, and the reason is printed.
"""

import argparse
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import cv2
import matplotlib.cbook
import numpy as np
import torch
from matplotlib.backend_bases import FigureCanvasBase
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmlinattn.checkpoints import CheckpointError, load_state_dict
from mmlinattn.engine.config import load_config
from mmlinattn.models.layers import BaseAttention, registered_subclasses
from mmlinattn.utils.command_line import Parser, errors_in_one_line
from mmlinattn.visualization.key_weights import calls_of, draw_key_weights, key_weights

# Public-domain photograph that is part of matplotlib.
PHOTOGRAPH = 'grace_hopper.jpg'


def ours() -> List[str]:
    return [
        n
        for n, kind in registered_subclasses(BaseAttention).items()
        if 'mmlinattn.' in kind.__module__
    ]


def parse_args() -> argparse.Namespace:
    parser = Parser(
        cfg_options=True, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('config', help='config of a classifier whose backbone takes attn_cfg')
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument('--checkpoints', type=Path, nargs='+', default=[], metavar='FILE')
    kinds.add_argument('--attentions', nargs='+', choices=ours(), metavar='NAME')
    add('--image', type=Path, help=f'default: {PHOTOGRAPH} of matplotlib')
    add('--size', type=int, nargs=2, default=(160, 192), metavar=('W', 'H'), help='of the image')
    add('--position', type=int, nargs=2, metavar=('X', 'Y'), help='pixel of the query')
    add('--layer', type=int, default=0, help='which attention of the backbone, in its order')
    add('--seed', type=int, default=0, help='of initial weights')
    add('--out', type=Path, default=Path('work_dirs/key_weights.png'))
    args = parser.parse_args()
    width, height = args.size
    args.position = args.position or (width // 2, height // 2)
    x, y = args.position
    if min(args.size) < 1 or not (0 <= x < width and 0 <= y < height):
        parser.error(f'--position {x} {y} is not on an image of --size {width} {height}')
    if args.image is None:
        args.image = Path(matplotlib.cbook.get_sample_data(PHOTOGRAPH, asfileobj=False))
    for path in (args.image, *args.checkpoints):
        if not path.is_file():
            parser.error(f'{str(path)!r} does not exist')
    suffixes = sorted(f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes())
    if args.out.suffix.lower() not in suffixes:
        parser.error(f'--out must end with one of {", ".join(suffixes)}, got {str(args.out)!r}')
    return args


def read_image(path: Path, size: Tuple[int, int]) -> np.ndarray:
    """Return an image resized to ``size`` (w, h) as (h, w, 3), BGR."""
    image = cv2.imread(str(path))
    if image is None:
        raise ValueError(f'--image {str(path)!r} is no image that OpenCV reads')
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def build(cfg: Config, attn_cfg: dict, seed: int) -> nn.Module:
    """Build the classifier with this attention in all stages or layers, with initial weights."""
    cfg.model.backbone.attn_cfg = attn_cfg
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model).eval()


def models(args: argparse.Namespace, cfg: Config) -> Iterator[Tuple[str, nn.Module]]:
    """Yield name of the attention and model.

    Attentions that the backbone does not support are skipped unless ``--attentions`` names them.
    """
    for path in args.checkpoints:
        state_dict, meta = load_state_dict(path)
        if 'attn_cfg' not in meta:
            raise CheckpointError(f'{path}: its meta does not say which attention it is of')
        model = build(cfg, meta['attn_cfg'], args.seed)
        model.load_state_dict(state_dict)
        yield meta['attn_cfg']['type'], model
    for name in [] if args.checkpoints else args.attentions or ours():
        try:
            model = build(cfg, dict(type=name), args.seed)
        except ValueError as error:
            if args.attentions:
                raise
            print(f'left out {name}: {error}')
        else:
            yield name, model


def cell(position: Tuple[int, int], size: Tuple[int, int], hw_shape: Tuple[int, int]) -> List[int]:
    """Return (row, column) of the cell that contains a pixel (x, y) of an image (w, h)."""
    return [at * cells // full for at, full, cells in zip(position[::-1], size[::-1], hw_shape)]


def draw(args: argparse.Namespace) -> Path:
    cfg = load_config(args.config, args.cfg_options)
    image = read_image(args.image, args.size)
    weights: Dict[str, torch.Tensor] = {}
    for name, model in models(args, cfg):
        layers = [m for m in model.backbone.modules() if isinstance(m, BaseAttention)]
        if not 0 <= args.layer < len(layers):
            raise ValueError(f'--layer {args.layer}: the backbone has {len(layers)} attentions')
        attn = layers[args.layer]
        batch = dict(inputs=torch.from_numpy(image).permute(2, 0, 1)[None])
        with calls_of(attn) as calls, torch.no_grad():
            model.extract_feat(model.data_preprocessor(batch)['inputs'])
        row, column = cell(args.position, args.size, calls[0].tokens.hw_shape)
        weights[name.removesuffix('Attention')] = key_weights(attn, calls[0], (row, column))
    return draw_key_weights(args.out, image[..., ::-1], weights, args.position)


def main() -> None:
    args = parse_args()
    with errors_in_one_line(args.debug):
        print(draw(args))


if __name__ == '__main__':
    main()

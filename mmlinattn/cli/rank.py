"""Measure rank and singular values of what the attentions of a backbone compute, by layer."""

import argparse
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from rich.table import Table
from torch import Tensor

from ..analysis.rank import MATRICES, LayerRank, layer_ranks
from ..apis.pipeline import Reader, packed_input, steps_of, without_loading
from ..apis.sources import image_files
from ..engine.config import load_image_config
from ..engine.model import check_device, initial_model, load_model
from ..utils import check_writable, write_json
from ..utils.command_line import plain_console
from ..visualization.rank import draw_ranks

FILES = ('rank.json', 'rank.png')
Inputs = List[Callable[[], Tensor]]


def noise(args: argparse.Namespace) -> Tuple[Inputs, str]:
    """Return inputs of standard normal noise, and their description."""
    height, width = args.shape
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.num_images, 1, 3, height, width)
    images = torch.randn(shape, generator=generator).to(args.device)
    inputs: Inputs = [partial(images.__getitem__, i) for i in range(args.num_images)]
    return inputs, f'{args.num_images} images of random noise, {height} x {width}'


def open_images(folder: str, number: int, read: Reader) -> Dict[str, np.ndarray]:
    """Read evenly spaced images of a folder, by name."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f'--images {folder}: there is no such folder')
    files = image_files([folder])
    names, number = [*files], min(number, len(files))
    chosen = [names[i * len(names) // number] for i in range(number)]
    return {name: read(files[name]) for name in chosen}


def inputs_of(cfg: Config, model: BaseModel, images: Iterable[np.ndarray]) -> Inputs:
    """Return functions that put an image through test pipeline and data preprocessor."""
    scope = cfg.get('default_scope')
    with DefaultScope.overwrite_default_scope(scope):
        pipeline = Compose(without_loading(steps_of(cfg)))

    def load(image: np.ndarray) -> Tensor:
        with DefaultScope.overwrite_default_scope(scope):
            batch = pseudo_collate([packed_input(pipeline, image)])
            return model.data_preprocessor(batch)['inputs']

    return [partial(load, image) for image in images]


def table(layers: Sequence[LayerRank], title: str, tolerance: float) -> Table:
    out = Table(
        title=title,
        caption=f'Mean rank over images and heads/largest possible. The rank counts singular '
        f'values above {tolerance:g} times the largest.',
    )
    for name in ('', 'attention', 'layer'):
        out.add_column(name, overflow='fold')
    for name in ('tokens N', *map('\n'.join, MATRICES.values())):
        out.add_column(name, justify='right', no_wrap=True)
    for i, layer in enumerate(layers):
        fewest, most = min(layer.tokens), max(layer.tokens)
        tokens = str(most) if fewest == most else f'{fewest} to {most}'
        cells = []
        for matrix in MATRICES:
            found = layer.spectra.get(matrix)
            cells.append(f'{found.mean:.1f}/{found.mean_full:g}' if found else '')
        out.add_row(str(i), layer.attention, layer.name, tokens, *cells)
    return out


def main(args: argparse.Namespace) -> int:
    cfg, args.device = load_image_config(args.config, args.cfg_options), check_device(args.device)
    images = {}
    if args.images:
        read = Reader(steps_of(cfg), cfg.get('default_scope'))
        images = open_images(args.images, args.num_images, read)
    for name in FILES:
        check_writable(args.out / name)
    if args.checkpoint:
        model, _ = load_model(cfg, args.checkpoint, args.device)
        weights = f'weights of {args.checkpoint}'
    else:
        model = initial_model(cfg, args.seed, args.device)
        weights = f'initial weights, untrained (seed {args.seed})'
    if images:
        inputs = inputs_of(cfg, model, images.values())
        source = f'{len(images)} images of {args.images}'
    else:
        inputs, source = noise(args)
    layers = layer_ranks(getattr(model, 'backbone', model), inputs, args.tolerance)
    title = f'{Path(args.config).stem}, {weights}\n{source}'
    record = dict(
        config=args.config, cfg_options=args.cfg_options, checkpoint=args.checkpoint,
        weights=weights, images=source, names=[*images], tolerance=args.tolerance,
        layers=[layer.to_dict() for layer in layers],
    )  # fmt: skip
    write_json(args.out / FILES[0], record)
    draw_ranks(args.out / FILES[1], layers, args.tolerance, title)
    console = plain_console()
    console.print(table(layers, title, args.tolerance))
    console.print(*(args.out / name for name in FILES), soft_wrap=True, highlight=False)
    return 0

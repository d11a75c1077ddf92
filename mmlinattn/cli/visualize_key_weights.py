"""Draw the weights of all keys for one query of an image."""

import argparse
import copy
import math
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import cv2
import matplotlib.cbook
import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ..apis.sources import read_image
from ..checkpoints import CheckpointError, load_state_dict
from ..engine.config import load_image_config
from ..engine.model import initial_model, load_model
from ..models.layers import BaseAttention, registered_subclasses
from ..models.layers.attend_calls import calls_of
from ..utils.suggest import did_you_mean
from ..visualization.files import check_picture
from ..visualization.key_weights import draw_key_weights, key_weights, stride_of

# Public-domain photograph that is part of matplotlib.
PHOTOGRAPH = 'grace_hopper.jpg'
SMALL = (160, 192)  # width and height for untrained weights
LONGEST = 640  # side of an image for trained weights


def package_attentions() -> List[str]:
    """Return the names of the attentions of this package."""
    return [
        name
        for name, kind in registered_subclasses(BaseAttention).items()
        if 'mmlinattn.models.' in kind.__module__
    ]


def resized_image(args: argparse.Namespace) -> np.ndarray:
    """Return the image in the size of ``args`` as (h, w, 3), BGR; complete size and position."""
    photograph = matplotlib.cbook.get_sample_data(PHOTOGRAPH, asfileobj=False)
    image = read_image(Path(args.image or photograph), max_megapixels=math.inf)
    if args.size is None and args.checkpoint is None:
        args.size = SMALL
    elif args.size is None:
        scale = min(1, LONGEST / max(image.shape[:2]))
        args.size = tuple(max(1, round(scale * side)) for side in image.shape[1::-1])
    width, height = args.size
    x, y = args.position = args.position or (width // 2, height // 2)
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(f'--position {x} {y} is not on an image of --size {width} {height}')
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def with_attention(cfg: Config, attn_cfg: dict) -> Config:
    """Return the config with this attention in all stages or layers of the backbone."""
    changed = copy.deepcopy(cfg)
    changed.model.backbone.attn_cfg = attn_cfg
    return changed


def models(args: argparse.Namespace, cfg: Config) -> Iterator[Tuple[str, nn.Module]]:
    """Yield name of the attention and model; names of initial weights end with 'untrained'.

    Attentions that the backbone does not support are skipped unless ``--attentions`` names them.
    """
    if args.checkpoint is not None:
        model, _ = load_model(cfg, args.checkpoint)
        yield type(attentions(model, args.layer)).__name__, model
        return
    for path in args.checkpoints:
        _, meta = load_state_dict(path)
        if 'attn_cfg' not in meta:
            raise CheckpointError(
                f'{path}: its meta does not say which attention it is of; one checkpoint of the '
                'config itself goes without --checkpoints, as CONFIG CHECKPOINT IMAGE'
            )
        model, _ = load_model(with_attention(cfg, meta['attn_cfg']), path)
        yield meta['attn_cfg']['type'], model
    for name in [] if args.checkpoints else args.attentions or package_attentions():
        try:
            model = initial_model(with_attention(cfg, dict(type=name)), args.seed)
        except ValueError as error:
            if args.attentions:
                raise
            print(f'left out {name}: {error}')
        else:
            yield f'{name}, untrained', model


def attentions(model: nn.Module, layer: int) -> BaseAttention:
    """Return attention number ``layer`` of the backbone of a model."""
    backbone = getattr(model, 'backbone', model)
    found = [module for module in backbone.modules() if isinstance(module, BaseAttention)]
    if not found:
        raise ValueError(f'the backbone {type(backbone).__name__} has no attention of this package')
    if not 0 <= layer < len(found):
        raise ValueError(f'--layer {layer}: the backbone has {len(found)} attentions')
    return found[layer]


def weights_of(
    args: argparse.Namespace, model: BaseModel, image: np.ndarray
) -> Tuple[Tensor, Tuple[int, int]]:
    """Return the weights (heads, h, w) of the keys and the size (w, h) that their map covers."""
    attn = attentions(model, args.layer)
    # One image (3, H, W) of the values 0..255, which the model normalises and pads.
    inputs = torch.from_numpy(image).permute(2, 0, 1)[None]
    batch = dict(inputs=inputs, data_samples=[BaseDataElement()])
    with calls_of(attn) as calls, torch.no_grad():
        inputs = model.data_preprocessor(batch)['inputs']
        getattr(model, 'extract_feat', model.backbone)(inputs)
    (x, y), (rows, columns) = args.position, calls[0].tokens.hw_shape
    stride = stride_of(model, attn, tuple(inputs.shape[-2:]), (rows, columns))
    # A backbone pads an image that ends within a patch.
    size = max(columns * stride, inputs.shape[-1]), max(rows * stride, inputs.shape[-2])
    return key_weights(attn, calls[0], (y // stride, x // stride)), size


def main(args: argparse.Namespace) -> int:
    check_picture('--out', args.out)
    unknown = sorted(set(args.attentions or ()) - set(known := package_attentions()))
    if unknown:
        hint = did_you_mean(unknown[0], known) or f'; there are {", ".join(known)}'
        raise ValueError(f'--attentions {unknown[0]}: no attention has this name{hint}')
    image = resized_image(args)
    cfg = load_image_config(args.config, args.cfg_options)
    weights: Dict[str, Tensor] = {}
    for name, model in models(args, cfg):
        title = name.replace('Attention', '')
        weights[title], (width, height) = weights_of(args, model, image)
    below, right = height - image.shape[0], width - image.shape[1]
    image = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_CONSTANT, value=(114,) * 3)
    print(draw_key_weights(args.out, image[..., ::-1], weights, args.position))
    return 0

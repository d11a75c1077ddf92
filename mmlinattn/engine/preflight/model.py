"""Checks of a model, on the meta device, before data is read."""

from typing import Any, List, Optional, Tuple

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..model import build_model, quiet

SIDE = 512  # of the image, enough for a stride of 256
Features = Tuple[Tensor, ...]  # of each level
HEADS = ('decode_head', 'auxiliary_head', 'bbox_head', 'rpn_head', 'head')


def check_channels(cfg: Config, model: Optional[nn.Module] = None) -> List[str]:
    """Raise ValueError if neck or heads expect other channels or strides than they get.

    The model is moved to the meta device, where backbone and neck run once, without values; models
    that cannot are not checked. Returns the parts whose channels were compared, such as
    ``['neck', 'bbox_head']``.
    """
    model, compared = build_model(cfg) if model is None else model, []
    model.to('meta').eval()  # some cannot be built there
    backbone = getattr(model, 'backbone', None)
    is_video = type(model).__name__ == 'VideoRecognizer'
    frames = getattr(backbone, 'num_frames', 8 if is_video else None)  # of backbones of clips
    shape = (1, 3, SIDE, SIDE) if frames is None else (1, 3, frames, SIDE, SIDE)
    given, source = _outputs(backbone, torch.empty(shape, device='meta')), 'backbone'
    for name in ('neck', *HEADS):
        part, options = getattr(model, name, None), cfg.model.get(name)
        if given is None or part is None:
            continue
        if is_video or type(model).__name__ == 'ImageClassifier':
            _compare_form(source, given, name, part)
        # A list of necks has no channels of its own.
        if isinstance(options, dict) and 'in_channels' in options:
            kind = type(getattr(model, source)).__name__
            is_detector = not {'bbox_head', 'rpn_head'}.isdisjoint(cfg.model)
            _compare(f'{source} {kind}', given, name, part, options, is_detector)
            compared.append(name)
        if frames is None and hasattr(part, 'prior_generator'):
            _compare_strides(source, given, name, part, options)
        if name == 'neck':
            given, source = _neck_outputs(part, given), 'neck'
    stride = getattr(getattr(model, 'decoder', None), 'stride', None)  # of SMCA
    if given is not None and isinstance(stride, int):
        cells = given[-1].shape[-1]
        if abs(SIDE / stride - cells) >= 1:
            raise ValueError(
                f'model.decoder.stride is {stride}, but the {source} gives maps of the stride '
                f'{SIDE // cells}: set model.decoder.stride={SIDE // cells}'
            )
    return compared


def check_single_images(model: nn.Module) -> None:
    """Raise ValueError if batch norm, as of a pooled map, cannot be trained on one image."""
    model.train()
    features: Any = torch.empty((1, 3, 2 * SIDE, 2 * SIDE), device='meta')
    for name in ('backbone', 'neck', *HEADS):
        part = getattr(model, name, None)
        try:
            found = None if part is None else _outputs(part, features)
        except ValueError as error:
            raise ValueError(
                f'batch norm of model.{name} ({type(part).__name__}) cannot be trained on one '
                f'image, of which it gets {str(error).partition("torch.Size(")[2].rstrip(")")}'
            ) from error
        if name == 'backbone' and found is None:
            return
        features = found if found and name not in HEADS else features


def _outputs(module: Optional[nn.Module], inputs: Any) -> Optional[Features]:
    """Return the outputs of a module on the meta device, or None if it cannot run there."""
    parameter = next(module.parameters(), None) if module is not None else None
    if module is None or (parameter is not None and parameter.device.type != 'meta'):
        return None
    found = _run(module, inputs)
    found = found if isinstance(found, (list, tuple)) else [found]
    return tuple(found) if all(isinstance(f, Tensor) and f.dim() > 1 for f in found) else None


def _neck_outputs(neck: nn.Module, given: Features) -> Optional[Features]:
    """Return the outputs of a neck, or None for vectors whose channels depend on the image size."""
    found = _outputs(neck, given)
    if found is None or found[-1].dim() > 2 or given[-1].dim() < 4:
        return found
    smaller = _outputs(neck, tuple(feature[..., ::2, ::2] for feature in given))
    return found if smaller and smaller[-1].shape[1] == found[-1].shape[1] else None


def _run(module: nn.Module, inputs: Any) -> Any:
    """Return what a module makes of inputs on the meta device, or None if it fails."""
    try:
        with torch.no_grad(), quiet():
            return module(inputs)
    except Exception as error:  # operators without a meta form, positions of one image size
        if 'more than 1 value per channel' in str(error):  # in training mode alone
            raise
        return None


def _compare(
    source: str, features: Features, name: str, module: nn.Module, options: dict, is_detector: bool
) -> None:
    """Raise ValueError if a module fails on these features and expects other channels."""
    expected, indices = options['in_channels'], options.get('in_index')
    has_levels = isinstance(expected, (list, tuple))
    if indices is None:
        chosen = features if has_levels else features[-1:]
    else:
        levels = indices if isinstance(indices, (list, tuple)) else [indices]
        if any(not -len(features) <= i < len(features) for i in levels):
            raise ValueError(
                f'model.{name}.in_index is {indices}, but {source} has {len(features)} outputs'
            )
        chosen = tuple(features[i] for i in levels)
    given = [feature.shape[1] for feature in chosen]
    wanted = [*expected] if has_levels else [expected]
    if wanted == given or _run(module, features) is not None:
        return
    cure = f'model.{name}.in_channels={given if has_levels else given[-1]}'
    if name == 'neck' and len(given) == 1 < len(wanted):
        cure += f', or model.backbone.out_indices to {len(wanted)} layers'
        if is_detector:
            cure = (
                "model.neck=dict(_delete_=True, type='SimpleFeaturePyramid', "
                f'in_channels={given[0]}, out_channels={options.get("out_channels", 256)}, '
                'num_outs=5)'
            )
    raise ValueError(
        f'model.{name}.in_channels is {expected}, but {source} gives '
        f'{"/".join(map(str, given))} channels: set {cure}'
    )


def _compare_form(source: str, features: Features, name: str, module: nn.Module) -> None:
    """Raise ValueError if neck or head of a classifier fails on vectors, or on maps."""
    dims = {feature.dim() for feature in features}
    if (name, dims) == ('head', {4}):
        given, cure = 'maps (B, C, H, W)', "neck=dict(type='GlobalAveragePooling')"
    elif (name, dims) == ('head', {5}):
        given, cure = 'maps (B, C, T, H, W)', "neck=dict(type='GlobalAveragePooling', dim=3)"
    elif (name, dims) == ('neck', {2}):
        given, cure = 'vectors (B, C)', 'neck=None'
    else:
        return
    other = tuple(f.flatten(2).mean(2) if f.dim() > 2 else f[..., None, None] for f in features)
    # It may fail for another reason, such as the size of the image or values that it reads.
    if _run(module, features) is not None or _run(module, other) is None:
        return
    raise ValueError(
        f'model.{name} {type(module).__name__} cannot run on the {given} of the {source}: set '
        f'model.{cure}, or another out_type of the backbone'
    )


def _compare_strides(
    source: str, features: Features, name: str, module: nn.Module, options: Any
) -> None:
    """Raise ValueError if the anchors of a head are for other maps; unsure cases pass."""
    found = getattr(module.prior_generator, 'strides', None) or ()
    strides = [pair if isinstance(pair, tuple) else (pair, pair) for pair in found]
    sizes = [(feature.shape[-1], feature.shape[-2]) for feature in features if feature.dim() == 4]
    # Of one cell the stride is unknown, and of cells that reach beyond the image.
    if not strides or any(size == 0 or SIDE % size for pair in sizes for size in pair):
        return
    given = [(SIDE // width, SIDE // height) for width, height in sizes]
    fits = all(min(size) == 1 or of == is_of for size, of, is_of in zip(sizes, given, strides))
    if len(given) == len(strides) and fits:
        return
    options = options if isinstance(options, dict) else {}
    keys = [key for key in ('anchor_generator', 'prior_generator') if key in options]
    option = f'{keys[0]}.strides' if keys else 'strides'
    new = [width for width, _ in given]
    raise ValueError(
        f'model.{name}.{option} is {[width for width, _ in strides]}, but {source} gives maps of '
        f'the strides {new}: set model.{name}.{option}={new}, or other outputs of the {source}'
    )

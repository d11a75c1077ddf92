"""Check of a model's channels, on the meta device, before data is read."""

from typing import Any, Optional, Tuple

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..model import build_model, quiet

SIDE = 128  # of the image, enough for a stride of 64


def check_channels(cfg: Config) -> None:
    """Raise ValueError if neck or heads expect other channels than the backbone gives.

    The backbone and the neck run once without values. Models that cannot run so are not checked.

    Args:
        cfg: config with a model of MMDetection, MMSegmentation or MMPretrain.

    Raises:
        ValueError: the message has both numbers of channels and the option to set.
    """
    model = build_model(cfg).eval()
    features = _outputs(getattr(model, 'backbone', None), torch.empty(1, 3, SIDE, SIDE))
    if features is None:
        return
    source, given = f'backbone {type(model.backbone).__name__}', features
    neck = getattr(model, 'neck', None)
    if neck is not None:
        _compare(source, given, 'neck', neck, cfg.model.neck)
        given = _outputs(neck, features)
        source = f'neck {type(neck).__name__}'
        if given is None:
            return
    for name in ('decode_head', 'auxiliary_head', 'bbox_head', 'rpn_head', 'head'):
        head = getattr(model, name, None)
        if head is not None and isinstance(cfg.model.get(name), dict):
            _compare(source, given, name, head, cfg.model[name])


def _outputs(module: Optional[nn.Module], inputs: Any) -> Optional[Tuple[Tensor, ...]]:
    """Return the outputs of a module on the meta device, or None if it cannot run there."""
    parameter = next(module.parameters(), None) if module is not None else None
    if module is None or (parameter is not None and parameter.device.type != 'meta'):
        return None
    try:
        with torch.no_grad(), quiet():
            moved = inputs.to('meta') if isinstance(inputs, Tensor) else inputs
            found = module(moved)
    except Exception:  # operators without a meta form, positions of one image size
        return None
    found = found if isinstance(found, (list, tuple)) else [found]
    return tuple(found) if all(isinstance(f, Tensor) and f.dim() > 1 for f in found) else None


def _compare(
    source: str, features: Tuple[Tensor, ...], name: str, module: nn.Module, options: dict
) -> None:
    """Raise ValueError if a module fails on these features and expects other channels."""
    expected = options.get('in_channels')
    indices = options.get('in_index')
    if indices is None:
        chosen = features if isinstance(expected, (list, tuple)) else features[-1:]
    else:
        levels = indices if isinstance(indices, (list, tuple)) else [indices]
        if any(not -len(features) <= i < len(features) for i in levels):
            raise ValueError(
                f'model.{name}.in_index is {indices}, but {source} has {len(features)} outputs'
            )
        chosen = tuple(features[i] for i in levels)
    given = [feature.shape[1] for feature in chosen]
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    if expected is None or wanted == given or _runs(module, features):
        return
    cure = given if isinstance(expected, (list, tuple)) else given[-1]
    raise ValueError(
        f'model.{name}.in_channels is {expected}, but {source} gives '
        f'{"/".join(map(str, given))} channels: set model.{name}.in_channels={cure}'
    )


def _runs(module: nn.Module, features: Tuple[Tensor, ...]) -> bool:
    try:
        with torch.no_grad(), quiet():
            module(features)
    except Exception:
        return False
    return True

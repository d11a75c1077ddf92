"""Initial weights that the ``init_cfg`` of a module names."""

from contextlib import contextmanager
from typing import Any, Iterator, List

from mmengine.model import PretrainedInit
from torch import nn

# Scheme by which MMEngine reads a checkpoint with mmlinattn.checkpoints.read_checkpoint.
SAFE = 'safe://'


def pretrained_inits(init_cfg: Any) -> List[dict]:
    """Return the parts of an ``init_cfg`` that load a checkpoint.

    Args:
        init_cfg: None, one dict or several.

    Example:
        >>> pretrained_inits([dict(type='Constant'), dict(type='Pretrained', checkpoint='a.pth')])
        [{'type': 'Pretrained', 'checkpoint': 'a.pth'}]
    """
    listed = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
    return [init for init in listed if init.get('type') in ('Pretrained', PretrainedInit)]


@contextmanager
def initial_weights_read_safely(model: nn.Module) -> Iterator[None]:
    """Let ``init_weights`` of a model read checkpoints without running code that they contain.

    MMEngine's own reader runs the code of a file that torch refuses.
    """
    inits = [
        init
        for module in model.modules()
        for init in pretrained_inits(getattr(module, 'init_cfg', None))
    ]
    for init in inits:
        init['checkpoint'] = f'{SAFE}{init["checkpoint"]}'
    try:
        yield
    finally:
        for init in inits:
            init['checkpoint'] = init['checkpoint'].removeprefix(SAFE)

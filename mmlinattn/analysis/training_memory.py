"""Memory of parameters, gradients and optimizer state, by the number of processes."""

from typing import Dict, Iterable, List, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from ..engine import build_model
from ..engine.model import quiet
from .operators import check_classes

# Keys of optim_wrapper that define the optimizer.
OPTIMIZER = ('optimizer', 'constructor', 'paramwise_cfg')


def training_memory(cfg: Config, processes: Iterable[int]) -> Dict[int, Dict[str, int]]:
    """Return the bytes of parameters, gradients and optimizer state without training.

    Shapes come from the model and from one step of its optimizer, on the meta device if the model
    can be built there. With FSDP2 each process holds rows of
    every tensor. The first process holds the most, so its rows are counted. Activations, gathered
    parameters and rounding by the allocator are not included.

    Args:
        cfg: training config with ``model`` and ``optim_wrapper``.
        processes: numbers of processes that share a model (``mesh.shard``); 1 is a training
            without sharding, such as DDP.

    Returns:
        for each number: bytes of ``parameters``, ``gradients``, ``optimizer state``, ``buffers``.

    Raises:
        ValueError: a number is below 1, or the config has no model or optimizer.

    Example:
        >>> cfg = Config(dict(
        ...     model=dict(type='RAVLT', arch='tiny'),
        ...     optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9)),
        ... ))
        >>> found = training_memory(cfg, (1, 8))
        >>> found[1]['gradients'] == found[1]['optimizer state']
        True
        >>> round(found[1]['parameters'] / found[8]['parameters'], 1)
        8.0
    """
    processes = list(processes)
    if any(number < 1 for number in processes):
        raise ValueError(f'processes must be positive numbers, got {processes}')
    if not cfg.get('optim_wrapper'):
        raise ValueError(f'the config has no optim_wrapper: {cfg.filename or cfg}')
    model = build_model(cfg)
    kept = {k: v for k, v in cfg.optim_wrapper.items() if k in OPTIMIZER}
    with quiet():
        optimizer = build_optim_wrapper(model, dict(kept, type='OptimWrapper')).optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        if group.get('fused'):
            group['fused'] = False  # has no meta kernels; the state is the same
    optimizer.step()
    # Pairs (tensor, is_sharded).
    state = [
        (value, value.shape == parameter.shape)
        for parameter, of_one in optimizer.state.items()
        for value in of_one.values()
        if isinstance(value, Tensor)
    ]
    parts: Dict[str, List[Tuple[Tensor, bool]]] = {
        'parameters': [(parameter, True) for parameter in model.parameters()],
        'gradients': [(parameter, True) for parameter in trained],
        'optimizer state': state,
        'buffers': [(buffer, False) for buffer in model.buffers()],
    }
    return {
        number: {
            name: sum(_bytes(tensor, number if spread else 1) for tensor, spread in tensors)
            for name, tensors in parts.items()
        }
        for number in processes
    }


def gathered_parameters(model: nn.Module, shard: Sequence[str]) -> Dict[str, int]:
    """Return the bytes of float32 parameters that FSDP2 gathers at once.

    Args:
        model: may be on the meta device.
        shard: as in FSDP2.

    Returns:
        bytes of the largest module of ``shard``, and of all parameters outside such modules.

    Raises:
        ValueError: the model has no module of a given class.
    """
    check_classes('shard', shard, model)
    blocks = [module for module in model.modules() if type(module).__name__ in shard]
    inside = {id(p) for block in blocks for p in block.parameters()}
    rest = sum(p.nbytes for p in model.parameters() if id(p) not in inside)
    largest = max((sum(p.nbytes for p in block.parameters()) for block in blocks), default=0)
    return {'largest block': largest, 'rest': rest}


def _bytes(tensor: Tensor, processes: int) -> int:
    """Return the bytes of the rows that the first process holds."""
    if not tensor.dim() or not tensor.numel():
        return tensor.nbytes
    rows = -(-len(tensor) // processes)
    return rows * (tensor.nbytes // len(tensor))

"""What a process of a training keeps from step to step, by the number of processes."""

from typing import Dict, Iterable, Sequence

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from ..engine import build_model
from ..engine.distributed.fsdp_strategy import check_classes
from ..engine.model import quiet

# Of optim_wrapper: what makes an optimizer, and not how it is used.
OPTIMIZER = ('optimizer', 'constructor', 'paramwise_cfg')


def training_memory(cfg: Config, processes: Iterable[int]) -> Dict[int, Dict[str, int]]:
    """Bytes of parameters, gradients and optimizer state, without a training.

    Shapes are those of the model and of the state that its optimizer makes in a step, on the meta
    device where the model can be built there. With
    :class:`mmlinattn.engine.FSDP2Strategy` a process has rows of each tensor, the first process
    the most: its are counted. Activations, gathered parameters and what the allocator rounds up
    are not among them.

    Args:
        cfg: of a training, with ``model`` and ``optim_wrapper``.
        processes: numbers over which a model is spread (``mesh.shard``); 1 is a training without
            sharding, such as DDP.

    Returns:
        for each number: bytes of ``parameters``, ``gradients``, ``optimizer state``, ``buffers``.

    Raises:
        ValueError: a number below 1, or a config without model or optimizer.

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
    optimizer.step()
    # Pairs of a tensor and whether it is spread.
    state = [
        (value, value.shape == parameter.shape)
        for parameter, of_one in optimizer.state.items()
        for value in of_one.values()
        if isinstance(value, Tensor)
    ]
    parts = {
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
    """Bytes of float32 parameters that :class:`mmlinattn.engine.FSDP2Strategy` gathers at once.

    Args:
        model: may be on the meta device.
        shard: as the strategy's.

    Returns:
        of the largest module of ``shard``, and of all that is in none of them.

    Raises:
        ValueError: a class that the model does not have.
    """
    check_classes('shard', shard, model)
    blocks = [module for module in model.modules() if type(module).__name__ in shard]
    inside = {id(p) for block in blocks for p in block.parameters()}
    rest = sum(p.nbytes for p in model.parameters() if id(p) not in inside)
    largest = max((sum(p.nbytes for p in block.parameters()) for block in blocks), default=0)
    return {'largest block': largest, 'rest': rest}


def _bytes(tensor: Tensor, processes: int) -> int:
    """Of the first process's rows."""
    if not tensor.dim() or not tensor.numel():
        return tensor.nbytes
    rows = -(-len(tensor) // processes)
    return rows * (tensor.nbytes // len(tensor))

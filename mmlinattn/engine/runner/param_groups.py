"""Optimizer steps with few parameter groups."""

from operator import itemgetter
from typing import Any, Dict, List

from torch.optim import SGD, Optimizer


def merge_groups_in_steps(optimizer: Optimizer) -> None:
    """Let each step of an optimizer go through one group for each set of options.

    With ``paramwise_cfg`` MMEngine makes a group of each parameter, for each of which an optimizer
    launches some ten kernels. Weights and state are the same. Outside of a step, in schedules and
    checkpoints, the groups are as they were, but plain dicts, which are read faster. Optimizers
    that are not of ``torch.optim`` stay as they are, and fused SGD, which would confuse parameters
    with and without a momentum. A second call does nothing.
    """
    foreign = not type(optimizer).__module__.startswith('torch.optim.')
    if foreign or getattr(optimizer, 'merges_groups', False):
        return
    if isinstance(optimizer, SGD) and optimizer.defaults.get('fused'):
        return
    optimizer.merges_groups = True  # type: ignore[attr-defined]  # its own mark
    optimizer.param_groups = [{**group} for group in optimizer.param_groups]
    own: List[list] = []  # in a step, and after one that has failed: the groups, and merged ones

    def merge(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        groups = own[0] if own and groups is own[1] else groups
        # Constructors add options of their own, such as the name of a parameter.
        options = itemgetter(*[name for name in optimizer.defaults if name in groups[0]])
        found: Dict[Any, dict] = {}
        for group in groups:
            key = options(group)
            try:
                same = found.get(key)
            except TypeError:  # an option is a list: a group of its own
                key, same = id(group), None
            if same is None:
                same = found[key] = {**group, 'params': []}
            same['params'] += group['params']
        optimizer.param_groups = [*found.values()]
        own[:] = [groups, optimizer.param_groups]

    def restore(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        optimizer.param_groups, _ = own
        own.clear()

    optimizer.register_step_pre_hook(merge)
    optimizer.register_step_post_hook(restore)

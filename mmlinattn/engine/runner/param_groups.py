"""Optimizer steps with few parameter groups."""

from operator import itemgetter
from typing import Any, Dict, List

from torch.optim import Optimizer


def merge_groups_in_steps(optimizer: Optimizer) -> None:
    """Let each step of an optimizer go through one group for each set of options.

    With ``paramwise_cfg`` MMEngine makes a group of each parameter. An optimizer goes through its
    groups in Python, and launches some ten kernels for each. Weights and state are the same.
    Outside of a step, in schedules and checkpoints, the groups are as they were, but plain dicts:
    those of a config enter four functions for each option that is read. Optimizers that are not of
    ``torch.optim`` stay as they are.
    """
    if not type(optimizer).__module__.startswith('torch.optim.'):
        return
    optimizer.param_groups = [{**group} for group in optimizer.param_groups]
    own: List[list] = []

    def merge(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        own[:] = [groups]
        # Constructors add options of their own, such as the name of a parameter.
        options = itemgetter(*[name for name in optimizer.defaults if name in groups[0]])
        found: Dict[Any, dict] = {}
        for group in groups:
            key = options(group)
            try:
                same = found.get(key)
            except TypeError:  # a list, such as the betas of a config
                key = repr(key)
                same = found.get(key)
            if same is None:
                same = found[key] = {**group, 'params': []}
            same['params'] += group['params']
        optimizer.param_groups = [*found.values()]

    def restore(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        optimizer.param_groups = own.pop()

    optimizer.register_step_pre_hook(merge)
    optimizer.register_step_post_hook(restore)

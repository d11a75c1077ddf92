"""Optimizer steps with few parameter groups."""

from operator import itemgetter
from typing import Any, Dict, List

from torch.optim import SGD, Optimizer


def merge_groups_in_steps(optimizer: Optimizer) -> None:
    """Let each step of an optimizer go through one group for each set of options.

    With ``paramwise_cfg`` MMEngine makes a group of each parameter. An optimizer goes through its
    groups in Python, and launches some ten kernels for each. Weights and state are the same.
    Outside of a step, in schedules and checkpoints, the groups are as they were, but plain dicts:
    those of a config enter four functions for each option that is read. Optimizers that are not of
    ``torch.optim`` stay as they are, and fused SGD, which would confuse parameters with and without
    a momentum. A second call does nothing.
    """
    own_kind = not type(optimizer).__module__.startswith('torch.optim.')
    if own_kind or getattr(optimizer, 'merges_groups', False):
        return
    if isinstance(optimizer, SGD) and optimizer.defaults.get('fused'):
        return
    optimizer.merges_groups = True  # type: ignore[attr-defined]  # its own mark
    optimizer.param_groups = [{**group} for group in optimizer.param_groups]
    own: List[list] = []  # not empty in a step, and after one that has failed

    def merge(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not own:
            own.append(optimizer.param_groups)
        (groups,) = own
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

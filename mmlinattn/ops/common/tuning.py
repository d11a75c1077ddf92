"""Search for the fastest launch configurations on this machine's GPU.

>>> from mmlinattn.ops.common import tuning
>>> tuning.candidates('kv_state', '64', 'half')[0][:3]  # block, warps, stages
(64, 4, 3)

On a GPU, with an operator to run (``run`` launches the kernels named, at a size that matters)::

    best = tuning.tune(['kv_state', 'query_output'], '64', 'half', run, device)
    tuning.save(launch_table.cache_path(), best, device)  # what a later process takes by itself
    tuning.save(launch_table.SHIPPED, best, device, shipped=True)  # what the next release ships

The next process uses a saved table. Within a process configurations, and so rounding, stay the
same.
"""

from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from triton.runtime.errors import OutOfResources

from . import launch_table, triton_helpers
from .launch_table import Config, Table

# Head dims and anchors that an entry of the table is for, or fewer.
SIZES, ANCHORS = (32, 64, 128), (64, 128)
# (block, warps, stages) by how kernels go over tokens; the best guess without a GPU first.
CANDIDATES: Dict[str, Tuple[Tuple[int, int, int], ...]] = {
    'tokens': (
        (64, 4, 3), (64, 4, 2), (64, 8, 3), (32, 4, 3), (64, 8, 2), (32, 4, 2), (32, 8, 2),
        (16, 4, 2), (128, 8, 3),
    ),
    'large': (  # float32, more than 64 channels or anchors, or gradients of parameters
        (64, 8, 2), (32, 8, 2), (32, 4, 2), (32, 8, 1), (16, 8, 2), (16, 8, 1), (16, 4, 2),
        (16, 4, 1), (64, 8, 3),
    ),
    'mean': ((128, 4, 1), (64, 4, 1), (256, 8, 1)),
    'between': ((64, 4, 1), (64, 8, 1), (64, 16, 1)),
    'tiles': (
        (64, 4, 2), (32, 4, 3), (64, 8, 2), (32, 4, 2), (64, 8, 1), (32, 4, 1), (32, 8, 1),
        (64, 8, 3),
    ),
}  # fmt: skip


def sizes_of(name: str) -> List[str]:
    """Return the size classes of a kernel; those of anchor kernels include the anchors.

    Example:
        >>> sizes_of('anchor_state')
        ['32x64', '32x128', '64x64', '64x128', '128x64', '128x128']
    """
    anchors = [f'x{m}' for m in ANCHORS] if name.startswith('anchor') else ['']
    # Wider feature maps are torch's.
    sizes = SIZES[:2] if name.startswith('adaptive') else SIZES
    return [f'{size}{m}' for size in sizes for m in anchors]


def candidates(name: str, size: str, kind: str) -> List[Config]:
    """Return candidate configurations; their registers and shared memory are unknown yet.

    Args:
        name: of the kernel in the table.
        size: see :func:`.launch_table.size_class`.
        kind: ``'half'`` or ``'float'``.
    """
    large = kind == 'float' or '128' in size or name == 'adaptive_backward'
    family = 'large' if large else 'tokens'
    if name == 'query_mean':
        family = 'mean'
    elif name.startswith('anchor_solver'):
        family = 'between'
    elif name.startswith('ripple') and name != 'ripple_far_backward':
        family = 'tiles'
    return [Config(*choice, registers=0, shared=0) for choice in CANDIDATES[family]]


def tune(
    names: Sequence[str],
    size: str,
    kind: str,
    run: Callable[[], Any],
    device: int = 0,
    repeats: int = 10,
    until: Optional[Callable[[], bool]] = None,
) -> Table:
    """Try the candidates of each kernel while all others keep their configuration.

    Args:
        names: kernels that ``run`` launches.
        size, kind: the entry of the table that ``run`` is of.
        run: calls an operator, forward or with its backward pass.
        device: index of the CUDA device.
        repeats: launches of each, whose median counts.
        until: no further candidate is tried once this is true.

    Returns:
        The fastest of each, and what one program of it takes: a table for :func:`save`. This
        process goes on with what it had.

    Raises:
        ValueError: a kernel that ``run`` does not launch, or none there is.
    """
    out: Table = {}
    for name in names:
        current = launch_table.table(device)[name].get(kind, {}).get(size)
        if current is None:
            raise ValueError(f'{name!r} has no configuration for {kind!r} and {size!r}')
        tried: Dict[Tuple[int, ...], Tuple[float, Config]] = {}
        for config in [current, *candidates(name, size, kind)]:
            if config[:3] in tried or (tried and until is not None and until()):
                continue
            with _forced(name, config, size, kind, device):
                try:
                    tried[config[:3]] = _measure(name, config, run, repeats)
                except OutOfResources:
                    continue
        if tried:
            out[name] = {kind: {size: min(tried.values())[1]}}
    return out


def save(path: Path, found: Table, device: int = 0, shipped: bool = False) -> None:
    """Add entries to a table on disk, under the GPU's name or (``shipped``) its architecture."""
    key = launch_table.architecture(device) if shipped else torch.cuda.get_device_name(device)
    tables = launch_table.read(path) if path.is_file() else {}
    launch_table.write(path, launch_table.merged(tables, {key: found}))


def load(path: Path, device: int = 0) -> Table:
    """Load the table that :func:`save` wrote for GPUs of this name."""
    return launch_table.read(path).get(torch.cuda.get_device_name(device), {})


@contextmanager
def _forced(name: str, config: Config, size: str, kind: str, device: int) -> Iterator[None]:
    """Use another configuration of one kernel inside the block."""
    entry = launch_table.table(device)[name][kind]
    before, entry[size] = entry[size], config
    triton_helpers.plan_of.cache_clear()
    try:
        yield
    finally:
        entry[size] = before
        triton_helpers.plan_of.cache_clear()


def _measure(
    name: str, config: Config, run: Callable[[], Any], repeats: int
) -> Tuple[float, Config]:
    """Return the median milliseconds of a kernel at its first launch, and its resources."""
    found: List[Tuple[float, Config]] = []

    def repeat(launched: str, start: Callable[[], Any]) -> None:
        compiled = start()
        if launched != name or found:
            return
        times = []
        for _ in range(repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            start()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        taken = dict(
            registers=compiled.n_regs, shared=compiled.metadata.shared, stack=4 * compiled.n_spills
        )
        found.append((median(times), config._replace(**taken)))

    triton_helpers.around_launch = repeat
    try:
        run()
    finally:
        triton_helpers.around_launch = None
    if not found:
        raise ValueError(f'run does not launch the kernel {name!r}')
    return found[0]

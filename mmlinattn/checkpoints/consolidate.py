"""Consolidation of a sharded checkpoint into one file."""

from pathlib import Path

import torch

from .errors import CheckpointError
from .read import read_checkpoint
from .sharded import is_sharded
from .write import SUFFIXES, PathLike, atomic_checkpoint, save_checkpoint


def consolidate(source: PathLike, target: PathLike, weights_only: bool = False) -> None:
    """Write a sharded checkpoint as one file, as training without sharding does.

    It runs in one process and needs memory for the complete checkpoint. Testing and fine-tuning
    do not need it: :func:`read_checkpoint` reads shards.

    Args:
        source: the sharded checkpoint.
        target: the file to write; it must not exist. Missing folders are created.
        weights_only: omit the state that only resuming needs, such as the optimizer's; ``target``
            may then end in ``.safetensors``.

    Raises:
        FileNotFoundError: ``source`` does not exist.
        CheckpointError: ``source`` cannot be read or has no shards; ``target`` exists, has
            another suffix or cannot be written.
    """
    target = Path(target).expanduser()
    suffixes = SUFFIXES if weights_only else SUFFIXES[:2]
    if target.suffix not in suffixes:
        raise CheckpointError(f'{target}: the name of a checkpoint must end in one of {suffixes}')
    if target.exists():
        raise CheckpointError(f'{target} is there already')
    if not is_sharded(read_checkpoint(source, fill=False)):
        raise CheckpointError(f'{source} has no shards: it is one file already')
    content = read_checkpoint(source)
    if weights_only:
        save_checkpoint(target, content['state_dict'], content['meta'])
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_checkpoint(target) as temporary:
        torch.save(content, temporary)

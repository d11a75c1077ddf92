"""One file in place of the shards of a checkpoint."""

from pathlib import Path

import torch

from .errors import CheckpointError
from .read import read_checkpoint
from .sharded import is_sharded
from .write import SUFFIXES, PathLike, save_checkpoint, whole_checkpoint


def consolidate(source: PathLike, target: PathLike, weights_only: bool = False) -> None:
    """Write a checkpoint in shards as one file, as a training without sharding leaves it.

    One process does it, with memory for the whole checkpoint. To test or to fine-tune from a
    checkpoint it is not needed: :func:`read_checkpoint` reads shards.

    Args:
        source: the file that has shards beside it.
        target: the file to write; missing folders are made. It must not be there.
        weights_only: leave out what resuming needs (the optimizer's state above all); ``target``
            may then end in ``.safetensors``.

    Raises:
        FileNotFoundError: no ``source``.
        CheckpointError: ``source`` cannot be read or has no shards; ``target`` is there, has
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
    with whole_checkpoint(target) as temporary:
        torch.save(content, temporary)

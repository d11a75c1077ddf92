"""Config files by their names in ``configs/``, and by the weights that they train."""

import os.path as osp
import re
from pathlib import Path
from typing import Dict, Optional

from ..utils.suggest import did_you_mean

SUFFIXES = ('.py', '.yml', '.yaml', '.json')  # those that MMEngine reads


def config_file(config: str) -> str:
    """Return the path of a config file, given as a path or as its name in ``configs/``.

    Raises:
        FileNotFoundError: no such file or name; the message suggests similar names.
        ValueError: the file is no config, such as a checkpoint.
    """
    if osp.isfile(config):
        if not config.endswith(SUFFIXES):
            raise ValueError(
                f'{config} is no config ({", ".join(SUFFIXES)}): name the config before the '
                'checkpoint and other files'
            )
        return config
    found = package_configs()
    if config in found:
        return str(found[config])
    hint = did_you_mean(Path(config).stem, found, 3)
    for suffix in SUFFIXES:
        if osp.isfile(config + suffix):
            hint = f', but {config + suffix} does'
    if osp.isdir(config):
        raise FileNotFoundError(f'config {config!r} is a folder')
    raise FileNotFoundError(f'config {config!r} does not exist{hint}')


def package_configs() -> Dict[str, Path]:
    """Return the configs of this package: name -> path.

    If two have one name, it means the first path by alphabet.
    """
    # An installed package contains its configs, as mim expects; in a checkout they are beside it.
    package = Path(__file__).resolve().parents[1]
    folder = next(filter(Path.is_dir, (package / '.mim/configs', package.parent / 'configs')), None)
    paths = [] if folder is None else sorted(folder.rglob('*.py'), reverse=True)
    return {path.stem: path for path in paths if '_base_' not in path.parts}


def pretraining_config(checkpoint: str) -> Optional[str]:
    """Return the config that trains the weights of a checkpoint, from the repository's root.

    The configs of detectors and segmentors call the weights of ``NAME_8xb128_in1k.py``
    ``checkpoints/NAME_in1k.pth``. For other names it is None.

    Example:
        >>> pretraining_config('checkpoints/mit-b0-rwgka_in1k.pth')
        'configs/rwgka/mit-b0-rwgka_8xb128_in1k.py'
    """
    model, _, data = Path(checkpoint).stem.rpartition('_')
    pattern = re.compile(rf'{re.escape(model)}_\d+xb\d+_{re.escape(data)}')
    for name, path in package_configs().items():
        if pattern.fullmatch(name):
            return f'configs/{path.parent.name}/{path.name}'
    return None

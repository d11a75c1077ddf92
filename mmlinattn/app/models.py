"""Models of the page."""

from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import yaml

from ..apis import Predictor, load
from ..checkpoints import package_weights

Files = Tuple[str, str]


def package_models() -> List[Files]:
    """Return config and checkpoint of the models that come with the package and can be built here.

    Raises:
        ModuleNotFoundError: no framework of any of them is installed.
    """
    needed = {}
    for name, weights in package_weights().items():  # a config needs its framework to be read
        entry = yaml.safe_load(Path(weights).with_name(f'{name}.yml').read_text())
        needed[name] = entry['Models'][0]['Metadata']['Framework']
    found = [(name, f'mmlinattn://{name}') for name in needed if find_spec(needed[name])]
    if not found:
        raise ModuleNotFoundError(
            f'no CONFIG CHECKPOINT is given, and the models of this package need one of '
            f'{", ".join(sorted({*needed.values()}))}'
        )
    return found


def load_models(files: Sequence[Files], device: str = 'cpu') -> Dict[str, Predictor]:
    """Return predictors by the name of their config, with the checkpoint if two are equal.

    Raises:
        FileNotFoundError, ValueError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.config.load_config` and :class:`mmlinattn.apis.Predictor`.
    """
    stems, models = [Path(config).stem for config, _ in files], {}
    for stem, (config, checkpoint) in zip(stems, files):
        name = stem if stems.count(stem) == 1 else f'{stem}, {checkpoint}'
        models[name] = load(config, checkpoint, device)
    return models

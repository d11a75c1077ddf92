"""Checkpoint cache for MMEngine: each checkpoint is read safely, once, checked and then loaded."""

import copy
import pickle
from typing import Any, BinaryIO, Callable, Dict, Optional

import yaml
from mmengine.fileio.handlers import PickleHandler, YamlHandler
from mmengine.fileio.handlers.registry_utils import file_handlers
from mmengine.runner import CheckpointLoader
from torch import nn

from .compare import LoadReport, check_fits
from .errors import CheckpointError
from .read import read_checkpoint, weights_of
from .safe_unpickle import PlainUnpickler
from .write import PathLike


class CheckpointCache:
    """Cache of checkpoints that were read and not yet loaded.

    Example:
        >>> import os, tempfile, torch
        >>> from mmengine.runner import load_checkpoint
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> torch.save(nn.Linear(2, 3).state_dict(), path)
        >>> store = CheckpointCache()
        >>> replace_mmengine_readers(store.read)
        >>> print(check_fits(path, nn.Linear(2, 3), read=store.read))
        2 keys match
        >>> os.remove(path)  # or somebody writes another file there
        >>> list(load_checkpoint(nn.Linear(2, 3), path, logger='silent')['state_dict'])
        ['weight', 'bias']
        >>> store.release()
    """

    def __init__(self) -> None:
        self._held: Optional[Dict[str, Dict[str, Any]]] = {}

    def read(self, source: PathLike) -> Dict[str, Any]:
        """Return the content of a checkpoint, read once for each source until :meth:`release`.

        Raises:
            CheckpointError: see :func:`read_checkpoint`.
        """
        if self._held is None:
            return read_checkpoint(source)
        name = str(source)
        if name not in self._held:
            self._held[name] = read_checkpoint(source)
        # A shallow copy suffices: load hooks of modules replace entries, but never modify values.
        return {key: copy.copy(value) for key, value in self._held[name].items()}

    def release(self) -> None:
        """Release the memory. Later reads open the file again and are as safe."""
        self._held = None


def replace_mmengine_readers(read: Callable[[PathLike], Dict[str, Any]] = read_checkpoint) -> None:
    """Make MMEngine read every checkpoint of this process with ``read``.

    This covers ``load_from``, ``resume``, ``init_cfg`` and the code of the models, for all URI
    schemes. Afterwards MMEngine accepts only plain types and numpy arrays in pickle files
    (annotations, proposals), and only plain types in YAML files.
    """

    def load_from_checked_source(filename: str, map_location: Any = None) -> Dict[str, Any]:
        return read(filename)

    for scheme in CheckpointLoader._schemes:
        CheckpointLoader._schemes[scheme] = load_from_checked_source
    pickles, yamls = _PlainPickleHandler(), _PlainYamlHandler()
    file_handlers.update(pkl=pickles, pickle=pickles, yaml=yamls, yml=yamls)


class _PlainPickleHandler(PickleHandler):
    def load_from_fileobj(self, file: BinaryIO, **kwargs: Any) -> Any:
        try:
            return PlainUnpickler(file, **kwargs).load()
        except pickle.UnpicklingError as error:
            name = getattr(file, 'name', 'a pickle file')
            raise CheckpointError(f'{name} is refused: {error}') from error


# The index of MMDetection's configs, read for `mmdet::`, takes seconds without libyaml.
_YAML_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class _PlainYamlHandler(YamlHandler):
    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        try:
            return yaml.load(file, _YAML_LOADER)
        except yaml.YAMLError as error:
            name = getattr(file, 'name', 'a YAML file')
            raise CheckpointError(f'{name} is refused: {error}') from error


def load_checkpoint(model: nn.Module, source: PathLike) -> Dict[str, Any]:
    """Load all weights of a model from a checkpoint, without MMEngine's runner.

    Args:
        model: modified in place.
        source: see :func:`read_checkpoint`.

    Returns:
        the checkpoint's meta information.

    Raises:
        FileNotFoundError, CheckpointError: see :func:`read_checkpoint` and :func:`check_fits`;
            also if the checkpoint lacks a weight of the model.
    """
    content = read_checkpoint(source)
    report = check_fits(source, model, read=lambda _: content)
    check_complete(source, report)
    model.load_state_dict(weights_of(content, source), strict=False)
    return content['meta']


def check_complete(source: PathLike, report: LoadReport) -> None:
    """Raise CheckpointError if the model has weights that the checkpoint lacks."""
    if report.missing:
        text = '; '.join(str(report).splitlines())
        cure = 'give the config it was trained with'
        if all(name.startswith('backbone.') for name in (*report.matched, *report.unexpected)):
            cure = 'it has weights of a backbone, which are named in model.backbone.init_cfg'
        raise CheckpointError(f'{source} is not of this whole model ({text}): {cure}')

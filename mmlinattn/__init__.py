"""Linear-complexity attention for dense prediction, as a plugin of the OpenMMLab stack.

Importing the package registers its modules; a config does that with
``custom_imports = dict(imports=['mmlinattn'])``. Without OpenMMLab :mod:`mmlinattn.ops` works, and
asking for the rest says what to install.
"""

from pathlib import Path

from . import compat, ops

# isort: split
from .version import __version__

__all__ = ['__version__', 'compat', 'ops']

try:
    import mmcv  # noqa: F401
    import mmengine  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ('mmengine', 'mmcv'):
        raise  # they are there, and lack something
    _missing = error

    def __getattr__(name: str):
        if not (Path(__file__).parent / name).is_dir():
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        raise ImportError(
            f'mmlinattn.{name} needs MMEngine and mmcv: docs/installation.md says how to install '
            f'them ({_missing})'
        ) from _missing
else:
    from . import backbones, classification, datasets, detection, engine, layers

    __all__ += ['backbones', 'classification', 'datasets', 'detection', 'engine', 'layers']

compat.warn_if_untested()

"""Linear-complexity attention for dense prediction, as a plugin of the OpenMMLab stack.

Importing the package registers its modules; a config does that with
``custom_imports = dict(imports=['mmlinattn'])``. Without OpenMMLab only :mod:`mmlinattn.ops` works;
access to the rest raises an ImportError that names the missing package.
"""

from pathlib import Path

import mmlinattn_mmcv  # noqa: F401  replaces operators that mmcv-lite lacks, before mmcv.ops loads

from . import ops
from .utils.environment import prepare_environment
from .utils.versions import warn_if_untested
from .version import __version__

__all__ = ['__version__', 'ops']

prepare_environment()

try:
    import mmcv  # noqa: F401
    import mmengine  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ('mmengine', 'mmcv'):
        raise  # mmengine or mmcv is installed but misses a requirement
    _missing = error

    def __getattr__(name: str):
        if not (Path(__file__).parent / name).is_dir():
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        raise ImportError(
            f'mmlinattn.{name} needs MMEngine and mmcv: docs/installation.md says how to install '
            f'them ({_missing})'
        ) from _missing
else:
    from . import datasets, engine, models

    __all__ += ['datasets', 'engine', 'models']

warn_if_untested()

"""Linear-complexity attention for dense prediction, as a plugin of the OpenMMLab stack.

Importing the package registers its modules and changes nothing else in the process; a config does
that with ``custom_imports = dict(imports=['mmlinattn'])``. Without OpenMMLab only
:mod:`mmlinattn.ops` works; access to the rest raises an ImportError that names the missing package.

The command line imports nothing here, since it parses its arguments first. Every command that reads
a config then imports :mod:`mmlinattn.engine`, which registers the same modules.
"""

from pathlib import Path

from .utils.environment import is_command_line
from .version import __version__

__all__ = ['__version__']

if not is_command_line():
    from . import ops
    from .utils.messages import known_messages_hidden
    from .utils.versions import warn_if_untested

    __all__ += ['ops']
    try:
        import mmcv.cnn  # noqa: F401  setup.py's mmcv/_ext.py alone would pass for mmcv
        import mmengine  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ('mmengine', 'mmcv', 'mmcv.cnn'):
            raise  # mmengine or mmcv is installed but misses a requirement
        _missing = error

        def __getattr__(name: str):
            if not (Path(__file__).parent / name).is_dir():
                raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
            raise ImportError(
                f'mmlinattn.{name} needs MMEngine and mmcv: docs/installation.md says how to '
                f'install them ({_missing})'
            ) from _missing
    else:
        with known_messages_hidden():
            from . import datasets, engine, evaluation, models
            from .models.layers import optimize_for_cpu

        __all__ += ['datasets', 'engine', 'evaluation', 'models', 'optimize_for_cpu']

    warn_if_untested()

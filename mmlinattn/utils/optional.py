"""Parts of the package that need a framework which may be missing."""

import importlib
from typing import Callable, Optional


def framework_error(framework: str) -> Optional[Exception]:
    """Return the error of importing the models of ``'mmdet'``, ...; None if they import."""
    try:
        importlib.import_module(f'{framework}.models')
    except (ImportError, AssertionError) as error:  # frameworks assert the versions they need
        return error
    except TypeError as error:  # MMPretrain derives a class from a name that transformers 5 lacks
        if str(error) != 'NoneType takes no arguments':
            raise
        return error
    return None


def unavailable(module: str, framework: str, package: str, error: Exception) -> Callable:
    """Return a module's ``__getattr__`` that raises ImportError and names what to install."""

    def getattr_(name: str):
        if name.startswith('__'):
            raise AttributeError(name)
        raise ImportError(
            f'{module}.{name} needs {framework}: pip install {package} ({error})'
        ) from error

    return getattr_

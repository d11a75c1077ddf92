"""The SMCA detector, which needs MMDetection.

Without MMDetection this package can be imported; access to a class then raises an ImportError that
names the package to install.
"""

try:
    import mmdet.models  # noqa: F401
except (ImportError, AssertionError, TypeError) as error:
    # AssertionError: MMDetection asserts the versions that it needs. TypeError: MMDetection imports
    # MMPretrain if installed, which derives a class from a name that transformers 5 lacks.
    if isinstance(error, TypeError) and str(error) != 'NoneType takes no arguments':
        raise
    _missing = error
    __all__ = []

    def __getattr__(name: str):
        if name.startswith('__'):
            raise AttributeError(name)
        raise ImportError(
            f'mmlinattn.models.detectors.{name} needs MMDetection: pip install onedl-mmdetection '
            f'({_missing})'
        ) from _missing
else:
    from .smca import SMCA
    from .smca_head import SMCAHead

    __all__ = ['SMCA', 'SMCAHead']

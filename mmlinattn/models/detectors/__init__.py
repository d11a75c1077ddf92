"""What needs MMDetection: the SMCA detector.

Without MMDetection this package still imports; asking it for a class says what to install.
"""

try:
    import mmdet.models  # noqa: F401
except (ImportError, AssertionError, TypeError) as error:
    # MMDetection asserts the versions that it needs; MMPretrain, which it imports where it is
    # installed, defines a class on a name that transformers 5 does not have.
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

"""Models of videos. The recogniser needs MMPretrain.

Without MMPretrain this package can be imported; access to ``VideoRecognizer`` then raises an
ImportError that names the package to install.
"""

from ...utils.optional import framework_error, unavailable

_missing = framework_error('mmpretrain')
if _missing is not None:
    __all__ = []
    __getattr__ = unavailable(__name__, 'MMPretrain', 'onedl-mmpretrain', _missing)
else:
    from .recognizer import VideoRecognizer

    __all__ = ['VideoRecognizer']

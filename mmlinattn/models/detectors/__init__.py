"""SMCA, and MMDetection's DETR family with any attention by config; both need MMDetection.

Without MMDetection this package can be imported; access to a class then raises an ImportError that
names the package to install.
"""

from ...utils.optional import framework_error, unavailable

_missing = framework_error('mmdet')
if _missing is not None:
    __all__ = []
    __getattr__ = unavailable(__name__, 'MMDetection', 'onedl-mmdetection', _missing)
else:
    from .detr_attention import (
        DeformableDETRWithAttention,
        DETRWithAttention,
        DINOWithAttention,
        Mask2FormerHeadWithAttention,
    )
    from .smca import SMCA
    from .smca_head import SMCAHead

    __all__ = [
        'SMCA',
        'DETRWithAttention',
        'DINOWithAttention',
        'DeformableDETRWithAttention',
        'Mask2FormerHeadWithAttention',
        'SMCAHead',
    ]

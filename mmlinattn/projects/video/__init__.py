"""Models, data and transforms of videos: TimeSformer, non-local blocks, region graphs.

A config registers them by ``custom_imports = dict(imports=['mmlinattn.projects.video'])``.
``VideoRecognizer`` needs MMPretrain: without it, access raises an ImportError that names the
package to install.
"""

from ...utils.optional import framework_error, unavailable
from .clip_ripple import ClipRippleAttention, clip_ripple_attention
from .dataset import VideoList
from .non_local import NonLocalBlock, NonLocalNeck
from .non_local_r3d import NonLocalR3D
from .region_graph import RegionGraph, RegionGraphNeck
from .space_time_block import SpaceTimeBlock
from .timesformer import TimeSformer
from .transforms import CropClip, FlipClip, LoadClip, ResizeClip

__all__ = [
    'ClipRippleAttention', 'CropClip', 'FlipClip', 'LoadClip', 'NonLocalBlock', 'NonLocalNeck',
    'NonLocalR3D', 'RegionGraph', 'RegionGraphNeck', 'ResizeClip', 'SpaceTimeBlock',
    'TimeSformer', 'VideoList', 'clip_ripple_attention',
]  # fmt: skip

_missing = framework_error('mmpretrain')
if _missing is not None:
    __getattr__ = unavailable(__name__, 'MMPretrain', 'onedl-mmpretrain', _missing)
else:
    from .recognizer import VideoRecognizer

    __all__ += ['VideoRecognizer']

"""Video data: annotation files of MMAction2, decoding by PyAV, transforms of clips."""

from .dataset import VideoList
from .transforms import CropClip, FlipClip, LoadClip, ResizeClip

__all__ = ['CropClip', 'FlipClip', 'LoadClip', 'ResizeClip', 'VideoList']

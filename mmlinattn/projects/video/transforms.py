"""Transforms of clips: loading, resizing, cropping and flipping."""

from typing import Optional, Sequence, Union

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine import fileio
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS

from ...utils import check_integer, check_number
from ...utils.errors import InputError
from .pyav import Video

CROPS = ('random', 'center', 'three')
PLACES = {'random': None, 'start': 0.0, 'middle': 0.5}


@TRANSFORMS.register_module()
class LoadClip(BaseTransform):
    """Load some frames of a video.

    With an ``interval``, the frames are evenly spaced, as in TimeSformer for Kinetics: 8 frames
    with an interval of 32, or 96 with 4. Without, the video is cut into equal segments with a
    frame of each, as for Something-Something. A clip that takes a frame more than once is logged,
    for the first video.

    Args:
        num_frames: frames T of the clip.
        interval: frames from one to the next; None for segments.
        place: ``'random'``, ``'start'`` or ``'middle'`` of the video, or of each segment.
        fps: frames per second that ``interval`` counts. None: those of the video, which folders of
            frames do not tell.
        backend_args: options of the file backend.

    Adds ``img`` (T, H, W, 3) uint8 RGB, ``img_shape`` and ``frame_numbers``, counted from 0.

    Raises:
        ValueError: a number is below 1, ``place`` is unknown; the video is unreadable, empty or
            truncated, or has no frame rate for ``fps``.
        ImportError: PyAV is not installed.

    Example:
        >>> LoadClip(num_frames=8, interval=32, place='middle').frame_numbers(300).tolist()
        [22, 58, 94, 131, 167, 204, 240, 277]
    """

    def __init__(
        self,
        num_frames: int,
        interval: Optional[int] = None,
        place: str = 'random',
        fps: Optional[float] = None,
        backend_args: Optional[dict] = None,
    ) -> None:
        self.num_frames = check_integer('num_frames', num_frames)
        self.interval = None if interval is None else check_integer('interval', interval)
        if fps is not None and interval is None:
            raise ValueError(f'fps needs an interval, got {fps=}, {interval=}')
        if place not in PLACES:
            raise ValueError(f'place must be one of {tuple(PLACES)}, got {place!r}')
        self.fps = None if fps is None else check_number('fps', fps, above=True)
        self.place, self.backend_args = place, backend_args
        self._repeat_logged = False

    def transform(self, results: dict) -> dict:
        path = results['video_path']
        if 'frame_template' in results:
            total = results['total_frames']
            numbers = self.frame_numbers(total)
            clip = self._read_images(path, results['frame_template'], numbers)
        else:
            video = Video(path, self.backend_args)
            total = video.num_frames
            numbers = self.frame_numbers(total, video.fps)
            clip = video.read(numbers.tolist())
        if len(np.unique(numbers)) < self.num_frames and not self._repeat_logged:
            self._repeat_logged = True
            print_log(
                f'a clip of {self.num_frames} frames repeats frames of {path}, which has {total}; '
                'for other videos this is not logged',
                'current',
            )
        results.update(img=clip, img_shape=clip.shape[1:3], frame_numbers=numbers)
        return results

    def frame_numbers(self, total: int, fps: Optional[float] = None) -> np.ndarray:
        """Return the frames to load of a video with ``total`` frames, (T,) int."""
        if total < 1:
            raise ValueError('the video has no frames')
        if self.fps and not fps:
            raise ValueError(
                f'LoadClip.fps={self.fps:g} needs the frame rate of the video, which is unknown, '
                'as for all folders of frames: set fps=None and an interval in frames'
            )
        count, fixed = self.num_frames, PLACES[self.place]
        if self.interval is None:
            place = np.random.rand(count) if fixed is None else fixed
            numbers = (np.arange(count) + place) * total / count
        else:
            # The first and the last frame span count * interval - 1 frames, as in the release.
            span = count * self.interval * (fps / self.fps if fps and self.fps else 1)
            room = max(total - span, 0)
            start = room * (np.random.rand() if fixed is None else fixed)
            numbers = start + np.linspace(0, max(span - 1, 0), count)
        return numbers.astype(int).clip(0, total - 1)

    def _read_images(self, folder: str, template: str, numbers: np.ndarray) -> np.ndarray:
        images = {}
        for number in set(numbers.tolist()):
            path = fileio.join_path(folder, template.format(number + 1))
            data = np.frombuffer(fileio.get(path, self.backend_args), np.uint8)
            image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
            if image is None:
                raise ValueError(f'frame {path} is no image')
            images[number] = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return np.stack([images[number] for number in numbers.tolist()])


@TRANSFORMS.register_module()
class ResizeClip(BaseTransform):
    """Resize the frames of a clip to a length of the short side; the aspect ratio is kept.

    Args:
        short_side: length, or a range (low, high) to draw it from for each clip.
        inverse: draw the inverse of the length uniformly, as TimeSformer for Something-Something.

    Raises:
        ValueError: a length is no integer of at least 1, or the range is empty.
        InputError: it stands behind :class:`CropClip`.

    Example:
        >>> clip = np.zeros((8, 60, 80, 3), np.uint8)
        >>> ResizeClip(30)(dict(img=clip))['img'].shape
        (8, 30, 40, 3)
    """

    def __init__(self, short_side: Union[int, Sequence[int]], inverse: bool = False) -> None:
        is_range = isinstance(short_side, (list, tuple))
        ends = tuple(short_side) if is_range else (short_side,) * 2  # type: ignore[arg-type]
        ends = tuple([check_integer('short_side', end) for end in ends])
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ValueError(f'short_side must be a length or a range, got {short_side!r}')
        self.low, self.high = ends
        self.inverse = inverse

    def transform(self, results: dict) -> dict:
        clip = _frames(results, 'ResizeClip')
        height, width = clip.shape[1:3]
        short = self.low
        if self.high > self.low and self.inverse:
            short = round(1 / np.random.uniform(1 / self.high, 1 / self.low))
        elif self.high > self.low:
            short = round(np.random.uniform(self.low, self.high))
        if short != min(height, width):
            ratio = short / min(height, width)
            size = (max(round(width * ratio), short), max(round(height * ratio), short))
            clip = np.stack([cv2.resize(frame, size) for frame in clip])
        results.update(img=clip, img_shape=clip.shape[1:3])
        return results


@TRANSFORMS.register_module()
class CropClip(BaseTransform):
    """Crop the frames of a clip, all at the same place.

    Args:
        size: side of the square crops.
        mode: ``'random'``, ``'center'``, or ``'three'`` crops along the longer side (start, middle
            and end), in the middle of the shorter one.

    The result ``img`` is (crops, 3, T, size, size), with one or three crops, as ``PackInputs`` of
    MMPretrain expects clips.

    Raises:
        ValueError: the mode is unknown, the size is below 1.
        InputError: a clip is smaller than the crop.

    Example:
        >>> clip = np.zeros((8, 60, 80, 3), np.uint8)
        >>> CropClip(48, 'three')(dict(img=clip))['img'].shape
        (3, 3, 8, 48, 48)
    """

    def __init__(self, size: int, mode: str = 'random') -> None:
        if mode not in CROPS:
            raise ValueError(f'mode must be one of {CROPS}, got {mode!r}')
        self.size = check_integer('size', size)
        self.mode = mode

    def transform(self, results: dict) -> dict:
        clip, size = _frames(results, 'CropClip'), self.size
        rows, columns = (length - size for length in clip.shape[1:3])
        if min(rows, columns) < 0:
            raise InputError(
                f'the clip has frames of {clip.shape[1:3]}, smaller than the crop of {size}: add '
                f"dict(type='ResizeClip', short_side={size}) before it"
            )
        if self.mode == 'random':
            places = [(np.random.randint(rows + 1), np.random.randint(columns + 1))]
        elif self.mode == 'center':
            places = [(rows // 2, columns // 2)]
        elif rows > columns:
            places = [(rows * i // 2, columns // 2) for i in range(3)]
        else:
            places = [(rows // 2, columns * i // 2) for i in range(3)]
        crops = np.stack([clip[:, y : y + size, x : x + size] for y, x in places])
        crops = np.ascontiguousarray(crops.transpose(0, 4, 1, 2, 3))  # [crops, 3, T, H, W]
        results.update(img=crops, img_shape=(size, size))
        return results


@TRANSFORMS.register_module()
class FlipClip(BaseTransform):
    """Flip the frames of a clip from left to right, before :class:`CropClip`.

    Args:
        prob: probability, 0 to 1.

    Raises:
        ValueError: ``prob`` is out of range.
        InputError: it stands behind :class:`CropClip`.

    Example:
        >>> clip = np.arange(2, dtype=np.uint8).reshape(1, 1, 2, 1)
        >>> FlipClip(1.0)(dict(img=clip))['img'].flatten().tolist()
        [1, 0]
    """

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f'prob must be in [0, 1], got {prob}')
        self.prob = prob

    def transform(self, results: dict) -> dict:
        clip = _frames(results, 'FlipClip')
        if np.random.rand() < self.prob:
            results['img'] = clip[:, :, ::-1]
        return results


def _frames(results: dict, name: str) -> np.ndarray:
    """Return the frames (T, H, W, 3) that a transform changes."""
    if results['img'].ndim != 4:
        raise InputError(f'{name} needs frames (T, H, W, 3): it must stand before CropClip')
    return results['img']

"""Where images come from: files, folders, videos, cameras."""

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Union

import cv2
import numpy as np
from PIL import UnidentifiedImageError

from ..datasets.audit.images import (
    JPEG,
    MAX_MEGAPIXELS,
    PNG,
    TooManyPixels,
    check_pixel_count,
    check_pixels,
    why_incomplete,
)
from .videos import check_video, frame_count, frame_rate, opened_video, why_cut

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg')
MOST_BYTES_A_PIXEL = 16  # four channels of 32 bits, not compressed


class FrameError(ValueError):
    """An image that cannot be read; the message names it."""


@dataclass(frozen=True)
class Frame:
    """An image of a source.

    Attributes:
        name: relative path of its file; of a video or a camera ``NAME#NUMBER``.
        image: (H, W, 3) uint8, BGR, as OpenCV and the frameworks read images; None where the file
            cannot be read.
        fault: why not.
    """

    name: str
    image: Optional[np.ndarray]
    fault: str = ''

    def read(self) -> np.ndarray:
        """The image; FrameError where there is none."""
        if self.image is None:
            raise FrameError(self.fault)
        return self.image


@dataclass(frozen=True)
class Source:
    """One of the sources that were asked for.

    Attributes:
        name: what its results are named after.
        paths: its images; empty for a video or a camera.
        video: the file or the number of the camera.
        root: names of frames are relative to it.
        max_megapixels: larger images and frames are not read.
    """

    name: str
    paths: Sequence[Path] = ()
    video: Union[str, int, None] = None
    root: Optional[Path] = None
    max_megapixels: float = MAX_MEGAPIXELS

    def __len__(self) -> int:
        """Number of frames; 0 where it is not known."""
        return len(self.paths) if self.video is None else frame_count(self.video)

    def name_of(self, path: Path) -> str:
        """What a frame is called that is a file."""
        return path.relative_to(self.root).as_posix() if self.root else path.name

    @property
    def frame_rate(self) -> float:
        """Frames a second of a video; 25 where it does not say."""
        assert self.video is not None
        return frame_rate(self.video)

    def __iter__(self) -> Iterator[Frame]:
        """Yield all frames. What cannot be read is a frame without an image: a file, the rest of a
        video that is cut off, a camera that was unplugged."""
        if self.video is None:
            for path in self.paths:
                yield _read(path, self.name_of(path), self.max_megapixels)
            return
        number = 0
        with opened_video(self.video) as capture:
            while True:
                there, image = capture.read()
                name = f'{self.name}#{number:06d}'
                fault = self._why_not(image if there else None, number)
                if fault:
                    yield Frame(name, None, fault)
                if fault or not there:
                    return
                yield Frame(name, image)
                number += 1

    def _why_not(self, image: Optional[np.ndarray], number: int) -> str:
        """Return what is wrong with a frame of a video, or with its end; '' if nothing is."""
        if image is not None:
            try:  # the size may differ from the one that the file announces
                check_pixel_count(image.shape[:2], f'frame {number} of video {self.name}',
                                  self.max_megapixels)  # fmt: skip
            except TooManyPixels as error:
                return str(error)
            return ''
        if isinstance(self.video, int):
            return f'camera {self.video} gave no more frames after {number}'
        if number == 0:
            return f'video {self.name} has no frame that can be read'
        cut = why_cut(str(self.video))
        return f'video {self.name} is {cut}: only {number} frames can be read' if cut else ''


def open_sources(sources: Sequence[str], max_megapixels: float = MAX_MEGAPIXELS) -> List[Source]:
    """What the names of a command line stand for.

    Args:
        sources: files of images or videos, folders (with all below them), or numbers of cameras.
        max_megapixels: larger images are not read, and larger videos are an error.

    Raises:
        FileNotFoundError: one that is not there, or a camera that is not.
        ValueError: a file that is neither image nor video by its name, a folder without images, a
            video that cannot be opened, two images or videos whose results would have one name.

    Example:
        >>> open_sources(['nowhere.jpg'])
        Traceback (most recent call last):
            ...
        FileNotFoundError: source 'nowhere.jpg' does not exist
    """
    opened = [_open(source, max_megapixels) for source in sources]
    of: Dict[str, int] = {}
    for i, source in enumerate(opened):
        videos = [] if source.video is None else [f'{source.name}.mp4']
        for name in videos or map(source.name_of, source.paths):
            other = of.setdefault(name, i)
            if other != i:
                raise ValueError(
                    f'sources {sources[other]!r} and {sources[i]!r} both have {name!r}, of which '
                    'results are named: predict them one by one, or the folder above them'
                )
    return opened


def _open(source: str, max_megapixels: float) -> Source:
    path = Path(source)
    if path.is_dir():
        paths = _images_below(path)
        if not paths:
            raise ValueError(f'source {source!r} is a folder without images ({", ".join(IMAGES)})')
        return Source(path.resolve().name, paths, root=path, max_megapixels=max_megapixels)
    if path.is_file() and path.suffix.lower() in IMAGES:
        return Source(path.stem, [path], max_megapixels=max_megapixels)
    video: Union[str, int] = source
    if path.is_file() and path.suffix.lower() not in VIDEOS:
        raise ValueError(
            f'source {source!r} is neither an image ({", ".join(IMAGES)}) '
            f'nor a video ({", ".join(VIDEOS)})'
        )
    if not path.is_file():
        if not source.isdecimal():
            raise FileNotFoundError(f'source {source!r} does not exist')
        video = int(source)
    check_video(video, source, max_megapixels)
    name = path.stem if isinstance(video, str) else f'camera{source}'
    return Source(name, video=video, max_megapixels=max_megapixels)


def _images_below(folder: Path) -> List[Path]:
    """Return the images below a folder, and folders there that cannot be read: both are named."""
    found = []

    def note(error: OSError) -> None:
        if error.filename == str(folder):
            raise error
        found.append(Path(error.filename))

    for parent, _, names in os.walk(folder, onerror=note):
        found += [Path(parent, n) for n in names if os.path.splitext(n)[1].lower() in IMAGES]
    return sorted(found)


def _read(path: Path, name: str, max_megapixels: float) -> Frame:
    image, reason = None, ''
    try:
        data = _content(path, max_megapixels)
        check_pixels(io.BytesIO(data), str(path), max_megapixels)
        # OpenCV fills what is missing of a JPEG or a PNG with grey.
        reason = why_incomplete(data) if data.startswith((JPEG, PNG)) else ''
        # Not `imread`, which crashes on names that are not UTF-8.
        image = None if reason else cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except TooManyPixels as error:
        return Frame(name, None, str(error))
    except UnidentifiedImageError:
        pass
    except Exception as error:  # decoders raise whatever they like on damaged files
        reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
    if image is not None:
        return Frame(name, image)
    kind = 'folder' if path.is_dir() else 'image'
    return Frame(name, None, f'{kind} {path} cannot be read: {reason or "damaged, or no image"}')


def _content(path: Path, max_megapixels: float) -> bytes:
    """Return the content of a regular file that is not too long for an image."""
    with open(path, 'rb', opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FrameError('not a regular file')
        size = status.st_size / 1e6
        if size > MOST_BYTES_A_PIXEL * max_megapixels + 1:
            raise FrameError(f'{size:.0f} MB are more than {max_megapixels:g} megapixels need')
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, 'O_NONBLOCK', 0))  # a pipe waits for its writer

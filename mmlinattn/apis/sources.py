"""Image sources: files, folders, videos, cameras."""

import io
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

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
    truncation_reason,
)
from .videos import check_video, frame_count, frame_rate, opened_video, video_truncation_reason

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg')
MOST_BYTES_A_PIXEL = 16  # four uncompressed channels of 32 bits


class FrameError(ValueError):
    """Image that cannot be read; the message names it."""


@dataclass(frozen=True)
class Frame:
    """Image of a source.

    Attributes:
        name: relative path of the file; ``NAME#NUMBER`` for a video or a camera.
        image: (H, W, 3) uint8, BGR, as OpenCV and the frameworks read images; None if it cannot be
            read.
        fault: reason why it cannot be read.
    """

    name: str
    image: Optional[np.ndarray]
    fault: str = ''

    def read(self) -> np.ndarray:
        """Return the image; raise FrameError if there is none."""
        if self.image is None:
            raise FrameError(self.fault)
        return self.image


@dataclass(frozen=True)
class Source:
    """Image, folder, video or camera to predict.

    Attributes:
        name: base name of the results.
        paths: image files; empty for a video or a camera.
        video: video file or camera number.
        root: folder that frame names are relative to.
        max_megapixels: larger images and frames are not read.
        passed_over: number of files in the folder that are no images by their names, by suffix.
    """

    name: str
    paths: Sequence[Path] = ()
    video: Union[str, int, None] = None
    root: Optional[Path] = None
    max_megapixels: float = MAX_MEGAPIXELS
    passed_over: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of frames; 0 if it is unknown."""
        return len(self.paths) if self.video is None else frame_count(self.video)

    def name_of(self, path: Path) -> str:
        """Return the frame name of an image file."""
        return path.relative_to(self.root).as_posix() if self.root else path.name

    @property
    def frame_rate(self) -> float:
        """Frames per second of a video; 25 if the file does not specify it."""
        assert self.video is not None
        return frame_rate(self.video)

    def __iter__(self) -> Iterator[Frame]:
        """Yield all frames.

        A frame that cannot be read has no image: a damaged file, the end of a truncated video, a
        camera that was unplugged.
        """
        if self.video is None:
            for path in self.paths:
                yield _read(path, self.name_of(path), self.max_megapixels)
            return
        number = 0
        with opened_video(self.video) as capture:
            while True:
                there, image = capture.read()
                name = f'{self.name}#{number:06d}'
                fault = self._unsupported_reason(image if there else None, number)
                if fault:
                    yield Frame(name, None, fault)
                if fault or not there:
                    return
                yield Frame(name, image)
                number += 1

    def _unsupported_reason(self, image: Optional[np.ndarray], number: int) -> str:
        """Return the fault of a video frame, or of the end of a video; '' if there is none."""
        if image is not None:
            try:  # the size may differ from the header of the file
                check_pixel_count(image.shape[:2], f'frame {number} of video {self.name}',
                                  self.max_megapixels)  # fmt: skip
            except TooManyPixels as error:
                return str(error)
            return ''
        if isinstance(self.video, int):
            return f'camera {self.video} gave no more frames after {number}'
        if number == 0:
            return f'video {self.name} has no frame that can be read'
        cut = video_truncation_reason(str(self.video))
        return f'video {self.name} is {cut}: only {number} frames can be read' if cut else ''


def open_sources(sources: Sequence[str], max_megapixels: float = MAX_MEGAPIXELS) -> List[Source]:
    """Return the sources that command-line arguments name.

    Args:
        sources: image or video files, folders (searched recursively), or camera numbers.
        max_megapixels: larger images are not read, and larger videos are an error.

    Raises:
        FileNotFoundError: a source or camera does not exist.
        ValueError: a file is neither image nor video by its name, a folder has no images, a video
            cannot be opened, or two images or videos would have results of the same name.

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


def output_names(sources: Sequence[Source]) -> Dict[str, str]:
    """Return the name, without a suffix, that the files written for each image get.

    The suffix of the image is left out where that keeps names apart.

    Example:
        >>> output_names([Source('a', [Path('a.jpg'), Path('b.jpg'), Path('b.png')])])
        {'a.jpg': 'a', 'b.jpg': 'b.jpg', 'b.png': 'b.png'}
    """
    names = [source.name_of(path) for source in sources for path in source.paths]
    stems = Counter(os.path.splitext(name)[0] for name in names)
    taken = {*names, *(stem for stem, count in stems.items() if count > 1)}
    return {name: name if (stem := os.path.splitext(name)[0]) in taken else stem for name in names}


def _open(source: str, max_megapixels: float) -> Source:
    path = Path(source)
    if path.is_dir():
        paths, others = images_below(path)
        if not paths:
            raise ValueError(f'source {source!r} is a folder without images ({", ".join(IMAGES)})')
        return Source(
            path.resolve().name, paths, None, path, max_megapixels, dict(sorted(others.items()))
        )
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


def read_image(path: Path, max_megapixels: float = MAX_MEGAPIXELS) -> np.ndarray:
    """Return the pixels of an image file, (H, W, 3) uint8, BGR.

    Raises:
        FrameError: the file is no image, damaged, truncated or too large.
    """
    return _read(path, str(path), max_megapixels).read()


def images_below(folder: Path) -> Tuple[List[Path], Counter]:
    """Return the images below a folder, and the number of other files by suffix.

    Unreadable subfolders are among the images: they become faults.
    """
    found: List[Path] = []
    others: Counter = Counter()

    def note(error: OSError) -> None:
        if error.filename == str(folder):
            raise error
        found.append(Path(error.filename))

    for parent, _, names in os.walk(folder, onerror=note):
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if suffix in IMAGES:
                found.append(Path(parent, name))
            else:
                others[suffix or 'no suffix'] += 1
    return sorted(found), others


def _read(path: Path, name: str, max_megapixels: float) -> Frame:
    image, reason = None, ''
    try:
        data = _content(path, max_megapixels)
        check_pixels(io.BytesIO(data), str(path), max_megapixels)
        # OpenCV fills the missing part of a truncated JPEG or PNG with grey.
        reason = truncation_reason(data) if data.startswith((JPEG, PNG)) else ''
        # `imread` crashes on names that are not UTF-8.
        image = None if reason else cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except TooManyPixels as error:
        return Frame(name, None, str(error))
    except UnidentifiedImageError:
        pass
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files
        reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
    if image is not None:
        return Frame(name, image)
    kind = 'folder' if path.is_dir() else 'image'
    return Frame(name, None, f'{kind} {path} cannot be read: {reason or "damaged, or no image"}')


def _content(path: Path, max_megapixels: float) -> bytes:
    """Return the content of a regular file; raise FrameError if it is too large for an image."""
    with open(path, 'rb', opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FrameError('not a regular file')
        size = status.st_size / 1e6
        if size > MOST_BYTES_A_PIXEL * max_megapixels + 1:
            raise FrameError(f'{size:.0f} MB are more than {max_megapixels:g} megapixels need')
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, 'O_NONBLOCK', 0))  # without it, opening a pipe blocks

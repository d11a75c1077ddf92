"""Where images come from: files, folders, videos, cameras."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Union

import cv2
import numpy as np

from ..datasets.images import why_incomplete_file

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg')
# FFmpeg's own words about a video that cannot be opened, beside the error that is raised.
os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '-8')


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
    """

    name: str
    paths: Sequence[Path] = ()
    video: Union[str, int, None] = None
    root: Optional[Path] = None

    def __len__(self) -> int:
        """Number of frames; 0 where it is not known."""
        if self.video is None:
            return len(self.paths)
        if isinstance(self.video, int):
            return 0
        capture = cv2.VideoCapture(self.video)
        count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        capture.release()
        return max(count, 0)

    def name_of(self, path: Path) -> str:
        """What a frame is called that is a file."""
        return path.relative_to(self.root).as_posix() if self.root else path.name

    @property
    def frame_rate(self) -> float:
        """Frames a second of a video; 25 where it does not say."""
        capture = cv2.VideoCapture(self.video)
        rate = capture.get(cv2.CAP_PROP_FPS)
        capture.release()
        return rate if 1 <= rate <= 240 else 25.0

    def __iter__(self) -> Iterator[Frame]:
        if self.video is None:
            for path in self.paths:
                yield _read(path, self.name_of(path))
            return
        capture = cv2.VideoCapture(self.video)
        try:
            number = 0
            while True:
                there, image = capture.read()
                if not there:
                    return
                yield Frame(f'{self.name}#{number:06d}', image)
                number += 1
        finally:
            capture.release()


def open_sources(sources: Sequence[str]) -> List[Source]:
    """What the names of a command line stand for.

    Args:
        sources: files of images or videos, folders (with all below them), or numbers of cameras.

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
    opened = [_open(source) for source in sources]
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


def _open(source: str) -> Source:
    path = Path(source)
    if path.is_dir():
        paths = sorted(p for p in path.rglob('*') if p.suffix.lower() in IMAGES and p.is_file())
        if not paths:
            raise ValueError(f'source {source!r} is a folder without images ({", ".join(IMAGES)})')
        return Source(path.resolve().name, paths, root=path)
    if path.is_file():
        if path.suffix.lower() in IMAGES:
            return Source(path.stem, [path])
        if path.suffix.lower() in VIDEOS:
            return _playable(Source(path.stem, video=str(path)), source)
        raise ValueError(
            f'source {source!r} is neither an image ({", ".join(IMAGES)}) '
            f'nor a video ({", ".join(VIDEOS)})'
        )
    if source.isdecimal():
        return _playable(Source(f'camera{source}', video=int(source)), source)
    raise FileNotFoundError(f'source {source!r} does not exist')


def _read(path: Path, name: str) -> Frame:
    """OpenCV fills what is missing of a JPEG or a PNG with grey, so it is looked for."""
    try:
        lack = why_incomplete_file(path) if path.suffix.lower() in ('.jpg', '.jpeg', '.png') else ''
    except OSError as error:
        lack = error.strerror
    image = None if lack else cv2.imread(str(path), cv2.IMREAD_COLOR)
    return Frame(name, image, f'image {path} cannot be read: {lack or "damaged, or no image"}')


def _playable(source: Source, name: str) -> Source:
    capture = cv2.VideoCapture(source.video)
    opened = capture.isOpened()
    capture.release()
    if opened:
        return source
    if isinstance(source.video, int):
        raise FileNotFoundError(f'camera {name} does not exist or cannot be opened')
    raise ValueError(f'video {name!r} cannot be opened: damaged, or of an unknown format')

"""Reading of video files and cameras with OpenCV."""

import os
import struct
from contextlib import contextmanager
from typing import BinaryIO, Iterator, Optional, Union

import cv2

from ..datasets.audit.images import check_pixel_count

# Silences FFmpeg's log: a video that cannot be opened raises an error anyway.
os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '-8')
OPTIONS = 'OPENCV_FFMPEG_CAPTURE_OPTIONS'
# FFmpeg decides by content, not by name. A playlist, a list of files or a stream description opens
# other files or URLs, and so does a MOV with external data references.
CONTAINERS_ONLY = (
    'format_whitelist;mov,avi,matroska,mpeg,mpegts|protocol_whitelist;file|enable_drefs;0'
)
BOXES = (b'ftyp', b'moov', b'mdat', b'free', b'skip', b'wide', b'pnot')  # of MP4 and MOV
DEFAULT_RATE = 25.0


@contextmanager
def opened_video(video: Union[str, int]) -> Iterator[cv2.VideoCapture]:
    """Yield a capture of a video file (MP4, MOV, AVI, MKV, WebM, MPEG) or of a camera."""
    capture = cv2.VideoCapture(video) if isinstance(video, int) else _opened_file(video)
    try:
        yield capture
    finally:
        capture.release()


def _opened_file(path: str) -> cv2.VideoCapture:
    # OpenCV 4.11 ignores the capture options: the first bytes are checked as well.
    if not _is_container(path):
        return cv2.VideoCapture()
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = CONTAINERS_ONLY
    try:
        # An absolute path cannot be parsed as a URL. Other backends of OpenCV have no list of
        # allowed formats: one of them reads sequences of numbered files.
        return cv2.VideoCapture(os.path.abspath(path), cv2.CAP_FFMPEG)
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def _is_container(path: str) -> bool:
    """Return True if the first bytes are those of MP4, MOV, AVI, MKV, WebM or MPEG."""
    try:
        with open(path, 'rb') as file:
            head = file.read(12)
    except OSError:
        return False
    return (
        head[4:8] in BOXES
        or (head[:4] == b'RIFF' and head[8:] == b'AVI ')
        or head.startswith((b'\x1aE\xdf\xa3', b'\0\0\1\xba', b'\0\0\1\xb3'))
        or b'G' in (head[:1], head[4:5])  # a transport stream, its packets of 188 or 192 bytes
    )


def check_video(video: Union[str, int], name: str, max_megapixels: float) -> None:
    """Raise an error unless a video or a camera can be opened and its frames are small enough.

    Raises:
        FileNotFoundError: the camera does not exist.
        TooManyPixels: see :func:`mmlinattn.datasets.audit.images.check_pixel_count`.
        ValueError: the file is damaged or of another format, or its name is not UTF-8.
    """
    if isinstance(video, str):
        try:
            video.encode()  # OpenCV crashes on names that are not UTF-8
        except UnicodeEncodeError as error:
            raise ValueError(f'video {name!r} has a name that is not UTF-8: rename it') from error
    with opened_video(video) as capture:
        if capture.isOpened():
            size = capture.get(cv2.CAP_PROP_FRAME_HEIGHT), capture.get(cv2.CAP_PROP_FRAME_WIDTH)
            check_pixel_count((int(size[0]), int(size[1])), f'video {name}', max_megapixels)
            return
    if isinstance(video, int):
        raise FileNotFoundError(f'camera {name} does not exist or cannot be opened')
    raise ValueError(
        f'video {name!r} cannot be opened: damaged, or not MP4, MOV, AVI, MKV, WebM or MPEG inside'
    )


def frame_count(video: Union[str, int]) -> int:
    """Return the number of frames in a video's header; 0 for a camera or if it is unknown."""
    if isinstance(video, int):
        return 0
    with opened_video(video) as capture:
        return max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)


def frame_rate(video: Union[str, int]) -> float:
    """Return the frames per second of a video; 25 if the file does not specify it."""
    with opened_video(video) as capture:
        rate = capture.get(cv2.CAP_PROP_FPS)
    return rate if 1 <= rate <= 240 else DEFAULT_RATE


def video_truncation_reason(path: str) -> Optional[str]:
    """Return a description of a truncated video file; None if it is complete.

    MP4, MOV, AVI, MKV and WebM store the length of their parts. MPEG streams do not, and recordings
    that were not closed may not. Frame counts are no evidence: they are estimated, or include
    frames that an edit list skips.
    """
    size = os.path.getsize(path)
    with open(path, 'rb') as file:
        head = file.read(12)
        if head[:4] == b'RIFF':
            end = _end_of_riff(file, size)
        elif head[:4] == b'\x1aE\xdf\xa3':
            end = _end_of_matroska(file)
        else:
            end = _end_of_boxes(file, size)
    return f'cut off after {size} of {end} bytes' if end > size else None


def _end_of_riff(file: BinaryIO, size: int) -> int:
    place = 0
    while True:
        file.seek(place)
        head = file.read(8)
        if head[:4] != b'RIFF' or len(head) < 8 or place >= size:
            return place
        place += 8 + struct.unpack('<I', head[4:])[0]
        place += place % 2


def _end_of_boxes(file: BinaryIO, size: int) -> int:
    """Return the end of the last box with frames or their index; junk may follow."""
    place = end = 0
    while place < size:
        file.seek(place)
        head = file.read(16).ljust(16, b'\0')
        length, kind = struct.unpack('>I4s', head[:8])
        if length == 1:
            length = struct.unpack('>Q', head[8:])[0]
        if length < 8:  # 0: extends to the end of the file; other values: junk
            break
        place += length
        if kind in (b'mdat', b'moof', b'moov'):
            end = place
    return end


def _end_of_matroska(file: BinaryIO) -> int:
    file.seek(4)
    file.seek(_variable_size(file), os.SEEK_CUR)
    if file.read(4) != b'\x18S\x80g':  # a segment, which contains all other elements
        return 0
    length = _variable_size(file)
    return file.tell() + length


def _variable_size(file: BinaryIO) -> int:
    """Read an EBML number; return 0 if the size is unknown (all bits set)."""
    first = (file.read(1) or b'\0')[0]
    bits = 7 * (9 - first.bit_length())
    value = int.from_bytes(bytes([first]) + file.read(bits // 7 - 1), 'big') & ((1 << bits) - 1)
    return 0 if value == (1 << bits) - 1 else value

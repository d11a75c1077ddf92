"""Reading and writing of videos by PyAV."""

import io
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, Optional, Sequence, Union

import numpy as np
from mmengine import fileio

try:
    import av

    if int(av.__version__.partition('.')[0]) < 17:  # without index_entries
        raise ImportError
except ImportError:  # the extra "video"; what needs it raises an error
    av = None  # type: ignore[assignment]  # a module that may be missing

NEEDS_AV = "videos need PyAV 17 or newer, the extra 'video': pip install 'av>=17'"


class Video:
    """Video stream of a file, for reading frames by number.

    Frames are decoded from the beginning up to the last one that is needed.

    Args:
        path: file or address of the video.
        backend_args: options of the file backend.

    Attributes:
        num_frames: number of frames that the file shows. They are decoded only if it does not say.
        fps: frames per second, or None if the file does not say: the mean rate, in some formats
            (FLV) the nominal one.

    Raises:
        ImportError: PyAV is not installed.
        ValueError: the file is no video, or has no frames.
        FileNotFoundError: the file does not exist.
    """

    def __init__(self, path: str, backend_args: Optional[dict] = None) -> None:
        if av is None:
            raise ImportError(NEEDS_AV)
        self.content = fileio.get(path, backend_args)
        if not self.content:
            raise ValueError('the file is empty')
        with _opened(self.content) as (container, stream):
            frames, rate = stream.frames, float(stream.average_rate or 0)
            kind = container.format.name
            if 'mp4' in kind:
                # Its number of frames ignores edit lists and fragments behind the first one.
                fragmented = b'moof' in self.content
                packets = container.demux(stream) if fragmented else stream.index_entries
                frames = sum(1 for p in packets if p.size and not p.is_discard)
            elif kind == 'avi' and frames:
                # Its number counts empty packets, for times without a new frame; a file that ends
                # before its last time is truncated.
                stamps = [p.dts for p in container.demux(stream) if p.size]
                if stamps and (stamps[-1] or 0) + 1 >= frames:
                    rate, frames = rate * len(stamps) / frames, len(stamps)
        if not frames:
            times = [frame.time for frame in self._frames()]
            frames, seconds = len(times), times[-1] - times[0] if times and None not in times else 0
            mean = (frames - 1) / seconds if seconds > 0 else rate
            if not 0.99 * rate < mean < 1.01 * rate:  # time stamps may be rounded
                rate = mean
        self.num_frames, self.fps = frames, rate or None
        if not self.num_frames:
            raise ValueError('the video has no frames')

    def read(self, numbers: Sequence[int]) -> np.ndarray:
        """Return frames by number, (len(numbers), H, W, 3) uint8 RGB, rotated as the file says.

        Raises:
            ValueError: the video ends before a frame that it should have, or is damaged.
        """
        wanted = set(numbers)
        found: Dict[int, np.ndarray] = {}
        for number, frame in enumerate(self._frames()):
            if number in wanted:
                # To the left, from the display matrix. That of a singular one is no angle.
                turns = round(frame.rotation / 90) if abs(frame.rotation) <= 180 else 0
                found[number] = np.rot90(frame.to_ndarray(format='rgb24'), turns)
            if len(found) == len(wanted):
                break
        if len(found) < len(wanted):
            raise ValueError(
                f'the video ends before frame {min(wanted - set(found))} of {self.num_frames}: the '
                'file is truncated'
            )
        return np.stack([found[number] for number in numbers])

    def _frames(self):
        with _opened(self.content) as (container, stream):
            yield from container.decode(stream)


@contextmanager
def _opened(content: bytes) -> Iterator[tuple]:
    """Yield the container of a video and its first video stream."""
    try:
        opened = av.open(io.BytesIO(content))
    except av.error.FFmpegError as error:
        raise ValueError(f'the file is no video: {error}') from error
    with opened as container:
        if not container.streams.video:
            raise ValueError('the file has no video stream')
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1  # data-loader workers are the parallelism
        try:
            yield container, stream
        except av.error.FFmpegError as error:
            raise ValueError(f'the video cannot be decoded: {error}') from error


def write_video(path: Union[str, Path], frames: np.ndarray, fps: int) -> None:
    """Write frames (T, H, W, 3) uint8 RGB with even sides as an H.264 video.

    Raises:
        ImportError: PyAV is not installed.
    """
    if av is None:
        raise ImportError(NEEDS_AV)
    with av.open(str(path), 'w') as container:
        stream = container.add_stream('libx264', fps, dict(crf='18'))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = 'yuv420p'
        stream.codec_context.thread_count = 1
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format='rgb24')))
        container.mux(stream.encode())

"""Frames of a video by their time, for data sets that have their images in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.checkpoint._disk import Disk
from cpprb_like.datasets._files import need
from cpprb_like.datasets._model import Array

__all__ = ["Video"]

FORMAT = "mp4"  # and nothing that is a list of other files
FAR = 10.0  # seconds that are passed over by a search, and not frame by frame


class Video:
    """Frames of a file: fast if they are read in the order of time. Holds one of them.

    Parameters
    ----------
    path : Path
    shape : (int, int, int)
        Height, width and channels, of which there are three.
    tolerance : float
        How many seconds a frame may be from the time that is given.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int], tolerance: float) -> None:
        self._path, self._shape, self._tolerance = path, shape, tolerance
        self._file = Disk(path.parent).open(path.name)
        self._container: Any = None
        self._frames: Iterator[Any] = iter(())
        self._now: tuple[float, Any] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        av = need("av", "lerobot")
        try:
            self._container = av.open(self._file, format=FORMAT)
            self._stream = self._container.streams.video[0]
            context = self._stream.codec_context
        except (av.FFmpegError, OSError, ValueError, IndexError) as error:
            raise ValueError(f"{self._path}: expected a video: {error}") from None
        found = context.height, context.width
        if found != self._shape[:2]:
            raise ValueError(f"{self._path}: expected images of {self._shape[:2]}, got {found}")

    def frames(self, times: list[float]) -> Array:
        """The frames at these times: uint8 of shape (n, height, width, channels)."""
        av = need("av", "lerobot")
        made = np.empty((len(times), *self._shape), np.uint8)
        try:
            for k, time in enumerate(times):
                frame = self._frame(time)
                if (frame.height, frame.width) != self._shape[:2]:
                    raise ValueError(f"expected images of {self._shape[:2]}, got {frame}")
                made[k] = frame.to_ndarray(format="rgb24")
        except (av.FFmpegError, OSError, ValueError, OverflowError) as error:
            raise ValueError(f"{self._path}: {error}") from None
        return made

    def _frame(self, time: float) -> Any:
        """The first frame that is not before a time."""
        now = self._now
        if now is None or time < now[0] - self._tolerance or time > now[0] + FAR:
            offset = max(0, int((time - self._tolerance) / self._stream.time_base))
            self._container.seek(offset, stream=self._stream)
            self._frames, now = self._container.decode(self._stream), None
        while now is None or now[0] < time - self._tolerance:
            frame = next(self._frames, None)
            if frame is None:
                raise ValueError(f"expected a frame at {time:.4f} s, got the end")
            now = float(frame.time or 0.0), frame
        self._now = now
        if now[0] > time + self._tolerance:
            raise ValueError(f"expected a frame at {time:.4f} s, got {now[0]:.4f} s")
        return now[1]

    def close(self) -> None:
        """Close the file."""
        self._now, self._frames = None, iter(())
        if self._container is not None:
            self._container.close()
        self._file.close()

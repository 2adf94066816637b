"""Files that a run's frames are appended to: one, or segments of which the oldest can be dropped."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from llm_locust.store.segments import SEGMENTS_DIR, segment_name

#: Most buffers of one writev call (IOV_MAX of Linux and macOS).
_BUFFERS_A_WRITE = 1024


class FrameLog:
    """A new file that frames are appended to; each call writes all of its frames or none.

    Raises:
        OSError: the file cannot be created, or exists already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self.size = 0  # end of the complete frames; later bytes are from a failed write

    def append(self, *frames: bytes) -> None:
        """Write frames after the last complete one, over the rest of a failed write; without a copy.

        Raises:
            OSError: they could not be written.
        """
        rest, at = [memoryview(frame) for frame in frames if frame], self.size
        while rest:
            done = os.pwritev(self._file.fileno(), rest[:_BUFFERS_A_WRITE], at)
            rest, at = _behind(rest, done), at + done
        self.size = at

    def trim(self) -> None:
        """Cut off the rest of a failed write (raises OSError)."""
        self._file.truncate(self.size)

    def close(self) -> None:
        """Cut off the rest of a failed write and close the file (raises OSError)."""
        with self._file:
            self.trim()


def _behind(buffers: list[memoryview], done: int) -> list[memoryview]:
    """Rest of the buffers after their first ``done`` bytes are written."""
    whole = 0
    while whole < len(buffers) and len(buffers[whole]) <= done:
        done -= len(buffers[whole])
        whole += 1
    rest = buffers[whole:]
    return [rest[0][done:], *rest[1:]] if done else rest


class SegmentLog:
    """As :class:`FrameLog`, in segments: a new one begins with the first write after ``span_s``.

    A segment is named by the bytes of all frames before it. Where a new one cannot begin, the present one
    goes on.

    Args:
        run: its directory.

    Raises:
        OSError: the segments' directory cannot be created, or exists already.
    """

    def __init__(self, run: Path, span_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.path = run / SEGMENTS_DIR
        self.path.mkdir()
        self._run = run
        self._span_s = span_s
        self._now_s = now_s
        self._base = 0
        self._begun_s = now_s()
        self._log = FrameLog(run / segment_name(0))

    def append(self, *frames: bytes) -> None:
        """As :meth:`FrameLog.append` (raises OSError)."""
        if self._log.size and self._now_s() - self._begun_s >= self._span_s:
            with suppress(OSError):
                self._begin_segment()
        self._log.append(*frames)

    def close(self) -> None:
        """As :meth:`FrameLog.close` (raises OSError)."""
        self._log.close()

    def _begin_segment(self) -> None:
        """Close the present segment after the next one is there (raises OSError, and then it goes on)."""
        self._log.trim()
        base = self._base + self._log.size
        following = FrameLog(self._run / segment_name(base))
        before, self._log = self._log, following
        self._base, self._begun_s = base, self._now_s()
        before.close()

"""Log of a pod as it grows, across connections that are cut."""

import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from llm_locust.k8s.kubectl import Kubectl, KubectlError

#: Pause before a log is asked for again.
_AGAIN_S = 1.0


class PodLog:
    """Follow the log of a container in a thread of its own; each line once.

    Args:
        write: called with each line, without the line end.
    """

    def __init__(self, kubectl: Kubectl, pod: str, container: str, write: Callable[[str], None]) -> None:
        self._kubectl = kubectl
        self._words = (pod, f"--container={container}", "--timestamps")
        self._write = write
        self._lines = Resumed()
        self._over = threading.Event()
        self._command: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write what is left of the log so far, and end."""
        self._over.set()
        if self._command is not None:
            with suppress(ProcessLookupError):
                self._command.terminate()
        self._thread.join(timeout=30)
        with suppress(KubectlError):  # then its last lines are missing, and its files have them
            self._write_new(self._kubectl("logs", *self._words, *self._since()).splitlines())

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                self._command = self._kubectl.start("logs", "--follow", *self._words, *self._since())
            except OSError:
                return
            if self._over.is_set():  # finish() may have looked before it was there
                self._command.terminate()
            assert self._command.stdout is not None
            with self._command.stdout as lines:
                self._write_new(line.decode(errors="replace").rstrip("\r\n") for line in lines)
            self._command.wait()
            self._over.wait(_AGAIN_S)

    def _write_new(self, lines: Iterable[str]) -> None:
        self._lines.restart()
        for line in lines:
            text = self._lines.take(line)
            if text is not None:
                self._write(text)

    def _since(self) -> list[str]:
        return [f"--since-time={self._lines.last}"] if self._lines.last else []


class Resumed:
    """Lines with timestamps, read several times from some point on: gives each once.

    Lines of one timestamp are counted, because the next reading starts with all of them again.
    """

    def __init__(self) -> None:
        self.last = ""
        self._of_last = 0
        self._to_skip = 0

    def restart(self) -> None:
        """The next line is one of a new reading."""
        self._to_skip = self._of_last

    def take(self, line: str) -> str | None:
        """Text of a line without its timestamp; None if it has been read before."""
        stamp, _, text = line.partition(" ")
        key, last = _comparable(stamp), _comparable(self.last)
        if self.last and key < last:
            return None
        if stamp == self.last:
            if self._to_skip:
                self._to_skip -= 1
                return None
            self._of_last += 1
        else:
            self.last, self._of_last, self._to_skip = stamp, 1, 0
        return text


def _comparable(stamp: str) -> str:
    """RFC 3339 in UTC, whose fraction has no trailing zeros, as a text that sorts by time."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}"

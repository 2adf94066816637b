"""The client's error tree.

ClientError
├── ConnectError            no connection could be made
├── ConnectionBrokenError   an open connection ended before the response was complete
├── RequestTimeoutError     a limit of the first byte, the gap or the total time was exceeded
├── AnswerOverError         nothing more is waited for, though the response goes on
└── ResponseError           the bytes are not an HTTP/1.1 response
    └── OversizeError       the response exceeds a size limit
"""

from typing import Self


class ClientError(Exception):
    """A request without a complete response; the text says why."""

    def without_frames(self) -> Self:
        """The same error without its traceback and cause.

        A kept error refers to every frame that it passed, and through them to the connection and the body: a
        reference cycle, which only the garbage collector would free.
        """
        return type(self)(*self.args)


class ConnectError(ClientError):
    """No connection: name resolution, TCP or TLS failed."""


class ConnectionBrokenError(ClientError):
    """The peer closed or reset an open connection before the response was complete."""


class AnswerOverError(ClientError):
    """Nothing that may follow changes the outcome of a call, and its response goes on."""


class RequestTimeoutError(ClientError):
    """A time limit on the first byte, the gap between events, or the whole request was exceeded."""


class ResponseError(ClientError):
    """The peer sent bytes that are not an HTTP/1.1 response."""


class OversizeError(ResponseError):
    """The response exceeds a size limit; the text names the limit."""


def size_text(size: int) -> str:
    """Number of bytes for display: ``64 MiB``, ``1.5 GiB``, ``100 bytes``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"

"""The client's error tree.

ClientError
├── ConnectError            no connection could be made
├── ConnectionBrokenError   an open connection ended before the response was complete
├── RequestTimeoutError     first byte, gap or total bound was passed
└── ResponseError           the bytes are not an HTTP/1.1 response
    └── OversizeError       the response is larger than a bound
"""

from typing import Self


class ClientError(Exception):
    """A request that did not get its whole response; the text says why."""

    def without_frames(self) -> Self:
        """The same error without its traceback and cause.

        An error that is kept holds every frame that it went through, and with them the connection and the
        body: a reference cycle, which only the garbage collector would free.
        """
        return type(self)(*self.args)


class ConnectError(ClientError):
    """No connection: name resolution, TCP or TLS failed."""


class ConnectionBrokenError(ClientError):
    """The peer closed or reset an open connection before the response was complete."""


class RequestTimeoutError(ClientError):
    """A bound on the first byte, the gap between events, or the whole request was passed."""


class ResponseError(ClientError):
    """The peer sent bytes that are not an HTTP/1.1 response."""


class OversizeError(ResponseError):
    """The response is larger than a bound; the text names the bound."""

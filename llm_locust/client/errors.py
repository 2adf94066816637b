"""The client's error tree.

ClientError
├── ConnectError            no connection could be made
├── ConnectionBrokenError   an open connection ended before the response was complete
├── RequestTimeoutError     first byte, gap or total bound was passed
└── ResponseError           the bytes are not an HTTP/1.1 response
"""


class ClientError(Exception):
    """A request that did not get its whole response; the text says why."""


class ConnectError(ClientError):
    """No connection: name resolution, TCP or TLS failed."""


class ConnectionBrokenError(ClientError):
    """The peer closed or reset an open connection before the response was complete."""


class RequestTimeoutError(ClientError):
    """A bound on the first byte, the gap between events, or the whole request was passed."""


class ResponseError(ClientError):
    """The peer sent bytes that are not an HTTP/1.1 response."""

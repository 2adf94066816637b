"""What the server truly did: the values of its log. All times are CLOCK_REALTIME nanoseconds."""

from typing import Any, Literal

import msgspec

ClosedBy = Literal["client", "server"]


class Write(msgspec.Struct):
    """One write of a script: begun at ``write_ns``, its last byte taken by the kernel at ``done_ns``."""

    step: int  # index into the script
    write_ns: int
    size: int  # bytes of the script, before any TLS
    done_ns: int | None = None


class ServedRequest(msgspec.Struct):
    """One request that was read completely, and how it was answered.

    ``received_ns`` is when the read of its last byte returned. ``ended_ns`` is when its script had
    ended or its connection was closed, whichever came first; ``None`` while neither has.
    """

    connection: int
    number: int  # on its connection, from 1
    method: str
    path: str
    headers: list[tuple[str, str]]  # as sent, in order, without X-Script
    body: bytes
    received_ns: int
    writes: list[Write] = []
    ended_ns: int | None = None
    ended_by: Literal["script"] | ClosedBy | None = None

    @property
    def write_ns(self) -> list[int]:
        """When each write was begun, in order."""
        return [w.write_ns for w in self.writes]

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class ServedConnection(msgspec.Struct):
    """One accepted connection. ``error`` is why the server gave it up (TLS failed, not HTTP)."""

    id: int  # from 1, in order of acceptance
    accepted_ns: int
    client_name: str | None = None  # common name of the client's certificate
    closed_ns: int | None = None
    closed_by: ClosedBy | None = None
    error: str | None = None


class Log(msgspec.Struct):
    """Requests in the order of their completion, connections in the order of acceptance."""

    requests: list[ServedRequest] = []
    connections: list[ServedConnection] = []

    @property
    def ended(self) -> int:
        return sum(r.ended_ns is not None for r in self.requests)

    @property
    def closed(self) -> int:
        return sum(c.closed_ns is not None for c in self.connections)

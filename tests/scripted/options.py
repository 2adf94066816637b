"""What a test says to its server: how to listen, and what to tell."""

from typing import Literal

import msgspec

from scripted.certificates import TlsFiles
from scripted.script import Step

RefuseBy = Literal["reset", "close", "stall"]


class SlowRead(msgspec.Struct, frozen=True):
    """Requests are read slowly: at most ``read_bytes`` each ``every_ms``, behind a small kernel buffer."""

    buffer_bytes: int = 4096
    read_bytes: int = 65536
    every_ms: float = 5


class Options(msgspec.Struct, frozen=True):
    """How one server listens; the arguments of ``scripted_server``."""

    host: str
    port: int
    tls: TlsFiles | None
    mutual: bool
    routes: dict[str, list[Step]]
    refuse: int
    refuse_by: RefuseBy
    slow_read: SlowRead | None
    nodelay: bool = True


class Command(msgspec.Struct, frozen=True):
    """One line on the server's standard input; each is answered by one line of JSON.

    ``log`` is answered at once; ``wait`` when so many requests have ended and connections are closed,
    or after ``timeout_s``; both with the log. ``forget`` closes all connections and empties the log.
    """

    do: Literal["log", "wait", "forget"]
    ended: int = 0
    closed: int = 0
    timeout_s: float = 5

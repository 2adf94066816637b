"""Single plain requests over a pool, for checks, never for measured load."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_locust.client.head import make_head
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.timeouts import Timeouts

#: Most bytes of an answer to a check, such as the list of models.
MAX_PLAIN_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Plain:
    """A complete answer. Header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[bytes, bytes] = field(default_factory=dict)


def get(pool: Pool, path: str, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Get ``path`` on the pool's target; return status and body. Raises as :func:`ask`."""
    found = ask(pool, "GET", path, headers, timeout_s)
    return found.status, found.body


def ask(
    pool: Pool, method: str, path: str, headers: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> Plain:
    """Send a request to the pool's target, on a new connection. Headers that are templates are left out.

    Raises:
        ClientError: no complete answer within the time limit.
    """
    head = make_head(pool.target.authority, headers).fixed
    if method != "GET":
        head += b"Content-Length: %d\r\n" % len(body)
    exchange = Exchange(MAX_PLAIN_BYTES)
    slices: list[bytes] = []
    exchange.on_slice = slices.append
    connection = pool.open()
    try:
        bound = Timeouts(first_s=timeout_s, gap_s=timeout_s, total_s=timeout_s)
        request = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), path.encode(), head, body)
        connection.send(request, exchange, bound)
        connection.wait_complete()
    finally:
        connection.finish()
        connection.close()
        exchange.drain()
        exchange.release()
    return Plain(exchange.status or 0, b"".join(slices), exchange.headers)

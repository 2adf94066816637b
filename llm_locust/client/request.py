"""A plain GET over a pool: for checks, never for measured load."""

from collections.abc import Mapping

from llm_locust.client.connection import Timeouts
from llm_locust.client.exchange import Exchange
from llm_locust.client.head import make_head
from llm_locust.client.pool import Pool


def get(pool: Pool, path: str, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Status and body of ``path`` on the pool's target. Headers that are templates are left out.

    Raises:
        ClientError: no whole answer within the time.
    """
    head = make_head(pool.target.authority, headers).fixed
    exchange = Exchange()
    body: list[bytes] = []
    exchange.on_slice = body.append
    connection = pool.open()
    try:
        bound = Timeouts(first_s=timeout_s, gap_s=timeout_s, total_s=timeout_s)
        connection.send(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), head), exchange, bound)
        connection.wait_complete()
    finally:
        connection.finish()
        connection.close()
    exchange.drain()
    return exchange.status or 0, b"".join(body)

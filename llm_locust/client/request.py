"""A plain GET over a pool: for checks, never for measured load."""

from collections.abc import Mapping

from llm_locust.client.connection import Timeouts
from llm_locust.client.exchange import Exchange
from llm_locust.client.pool import Pool


def get(pool: Pool, path: str, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Status and body of ``path`` on the pool's target.

    Raises:
        ClientError: no whole answer within the time.
    """
    lines = {
        "Host": pool.target.authority,
        "Accept-Encoding": "identity",
        "User-Agent": "llm-locust",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    exchange = Exchange()
    body: list[bytes] = []
    exchange.on_slice = body.append
    connection = pool.open()
    try:
        bound = Timeouts(first_s=timeout_s, gap_s=timeout_s, total_s=timeout_s)
        connection.send(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"), exchange, bound)
        connection.wait_complete()
    finally:
        connection.finish()
        connection.close()
    exchange.drain()
    return exchange.status or 0, b"".join(body)

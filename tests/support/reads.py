"""Reads of a connection, as a reader of sockets packs them."""

from collections.abc import Sequence
from itertools import accumulate

from llm_locust.client.http.clock import READ


def read(data: bytes, program_ns: int = 1, kernel_ns: int = 0) -> tuple[bytes, bytes]:
    """The arguments of ``Exchange.on_reads`` for bytes that one read got."""
    return data, READ.pack(len(data), kernel_ns, program_ns)


def reads(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The same for bytes that several reads got, at 1 ns, 2 ns, ..."""
    ends = accumulate(map(len, parts))
    return b"".join(parts), b"".join(READ.pack(end, 0, n) for n, end in enumerate(ends, start=1))

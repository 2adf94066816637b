"""What the tests of the client share: calls, usual answers, and kernel stamps turned on."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
import msgspec
import numpy as np
from numpy.typing import NDArray
from scripted import Script, chat_chunk, chunk, last_chunk, response_head, sse, write

from llm_locust.client.call import LlmClient
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.core.record import RequestRecord

MS = 1_000_000

#: Status line and headers of a chunked stream.
HEAD = response_head()


def token(text: str = "t") -> bytes:
    """One token event."""
    return sse(chat_chunk(text))


def stop() -> bytes:
    """The events that end a whole answer."""
    return sse(chat_chunk(finish_reason="stop")) + sse("[DONE]")


#: A whole streamed answer of one token, at once.
GOOD = write(0, HEAD + chunk(token() + stop()) + last_chunk())


@dataclass(frozen=True, slots=True)
class Caller:
    """A client, and every answer that its sink got."""

    client: LlmClient
    answers: list[Answer] = field(default_factory=list)

    def ask(
        self, script: Script | None, *, path: str = "/chat/completions", pad: int = 0, **of: Any
    ) -> Answer:
        """One call that the server answers by the script. ``pad`` makes the body larger by so many bytes."""
        body = {"script": list(script)} if script is not None else {}
        return self.client.post(path, msgspec.json.encode(body | {"pad": "p" * pad}), self.call(**of))

    def spawn(self, script: Script, **of: Any) -> "gevent.Greenlet[..., Answer]":
        return gevent.spawn(self.ask, script, **of)

    def call(self, **of: Any) -> Call:
        return Call(request_id=self.client.new_request_id(), name="test", scheduled_ns=1, **of)


def ask_on_a_stale_connection(ask: Caller, script: Script, **of: Any) -> RequestRecord:
    """A call whose pooled connection was alive when it was looked at, and which the server then closes.

    To be called within 0.1 s of an answer whose script ends with a step ``at_ms=100`` that closes.
    """
    pool = ask.client.pool
    acquire = pool.acquire

    def acquire_and_be_late() -> Connection:
        pool.acquire = acquire  # type: ignore[method-assign]
        connection = acquire()
        time.sleep(0.3)  # the event loop is held: nothing of the close is heard
        return connection

    pool.acquire = acquire_and_be_late  # type: ignore[method-assign]
    return ask.ask(script, **of).record


@contextmanager
def caller(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    tls_name: str | None = None,
    connect_timeout_s: float = 5,
    kernel_stamps: bool = True,
    **of: Any,
) -> Iterator[Caller]:
    """A client of the server at ``url``; ``of`` are further arguments of :class:`LlmClient`."""
    pool = Pool(
        Target.parse(url),
        tls=tls,
        tls_name=tls_name,
        connect_timeout_s=connect_timeout_s,
        kernel_stamps=kernel_stamps,
    )
    answers: list[Answer] = []
    try:
        yield Caller(LlmClient(pool, sink=answers.append, **of), answers)
    finally:
        pool.close()


def arrived_ns(record: RequestRecord) -> NDArray[np.int64]:
    """When each token event came, realtime."""
    assert record.sent_ns is not None
    return record.sent_ns + record.arrivals_ns

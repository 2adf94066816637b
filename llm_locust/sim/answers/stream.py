"""One streamed answer: the tokens' bytes, written straight to the transport.

aiohttp writes the head and the end of the answer. The chunks between bypass its writer, which takes as long
again as the socket's send.
"""

import asyncio
import socket
import struct
import time

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.answers.template import GARBAGE, StreamTemplate

#: Faults that replace a token of a stream.
MIDWAY = frozenset({"reset", "cut", "truncated", "stall", "garbage", "error_object"})

_LINGER_ZERO = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.Transport) -> None:
    """Close the connection at once with an RST."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


class TokenStream:
    """Writes a job's tokens as they are generated, and its fault in place of token ``strike_at`` + 1.

    ``done`` is resolved when the last byte before the end of the body is written; :meth:`tail` is then what
    precedes that end. ``hung_up``: the fault has closed the connection.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        template: StreamTemplate,
        job: Job,
        *,
        fault: str | None = None,
        strike_at: int = 0,
        stall_s: float = 0.0,
    ) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.token_ns: list[int] = []
        self.eos_ns: int | None = None
        self.complete = False
        self.hung_up = False
        self._error = b""
        self._transport = transport
        self._template = template
        self._job = job
        self._fault = fault
        self._strike_at = min(strike_at, job.output_tokens - 1) if fault in MIDWAY else -1
        self._stall_s = stall_s
        self._tokens = 0  # generated, including the held back ones of a stalled stream
        self._held: list[bytes | None] | None = None  # None: the end without text
        self._opened = False

    def open(self) -> None:
        """Write the events before the first token, each separately; at most once."""
        if not self._opened:
            self._opened = True
            for event in self._template.opening:
                self._transport.write(_chunk(event))

    def token(self) -> None:
        """Send the next token. This is the engine's sink."""
        if self.done.done():
            return
        if not self._opened:
            self.open()
        job = self._job
        if self._tokens == self._strike_at:
            self._strike()
            if self.done.done():
                return
        if job.output_tokens:  # an answer without tokens ends at the place of its first one
            self._tokens += 1
            if self._tokens > job.text_tokens:
                self._send(None)
            else:
                text = job.text.escaped(self._tokens - 1)
                last = self._tokens == job.output_tokens
                self._send(_chunk(self._template.token(text, self._tokens, last)))
        if self._tokens == job.output_tokens and self._held is None:
            self._finish()

    def tail(self, cached_tokens: int | None) -> bytes:
        """Bytes after the last token; usage reports that many cached tokens of the prompt."""
        return self._template.closing(cached_tokens) if self.complete else self._error

    def _send(self, chunk: bytes | None) -> None:
        """Send a token's event, or that of the end without text."""
        if self._held is not None:
            self._held.append(chunk)
            return
        if chunk is None:
            self.eos_ns = time.time_ns()
            if end := self._template.end(self._job.output_tokens):
                self._transport.write(_chunk(end))
            return
        self.token_ns.append(time.time_ns())
        self._transport.write(chunk)

    def _finish(self) -> None:
        self.complete = True
        self.done.set_result(None)

    def _strike(self) -> None:
        match self._fault:
            case "reset":
                reset_connection(self._transport)
                self._hang_up()
            case "cut":
                self._transport.close()
                self._hang_up()
            case "truncated":
                self.done.set_result(None)
            case "error_object":
                self._error = self._template.error(self._tokens)
                self.done.set_result(None)
            case "garbage":
                self._transport.write(_chunk(GARBAGE))
            case "stall":
                self._held = []
                asyncio.get_running_loop().call_later(self._stall_s, self._release)

    def _hang_up(self) -> None:
        self.hung_up = True
        self.done.set_result(None)

    def _release(self) -> None:
        if self.done.done():
            return
        held, self._held = self._held or [], None
        for chunk in held:
            self._send(chunk)
        if self._tokens == self._job.output_tokens:
            self._finish()


def _chunk(event: bytes) -> bytes:
    """The event as one chunk of HTTP/1.1's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(event), event)

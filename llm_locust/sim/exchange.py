"""One request for inference, from its headers to its entry in the truth log."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from aiohttp import web

from llm_locust.sim.answers import FAULT_MESSAGE, FORMATS, GARBAGE, StreamTemplate
from llm_locust.sim.engine import EngineSequence
from llm_locust.sim.faults import http_status
from llm_locust.sim.jobs import Job, RequestError
from llm_locust.sim.replica import Replica, TokenSink, Transfer, Upstream, reset_connection, session_fields
from llm_locust.sim.settings import FaultSettings
from llm_locust.sim.truth import TruthEntry
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.headers import SessionHeader

# --- One streamed answer: the tokens' bytes, written straight to the transport


#: Faults that replace a token of a stream.
MIDWAY = frozenset({"reset", "cut", "truncated", "stall", "garbage", "error_object"})


class TokenStream:
    """Writes a job's tokens as they are generated, and its fault in place of token ``strike_at`` + 1.

    aiohttp writes the head and the end of the answer. The chunks between bypass its writer, which takes as
    long again as the socket's send.

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


# --- Disaggregated prefill: another replica computes a request's prompt before its own one decodes


@dataclass(slots=True)
class Prefill:
    """Prompt of a request at its prefill replica, and the transfer of its KV cache that follows.

    The prefill replica generates one token, which is thrown away, as vLLM's is asked to.
    """

    upstream: Upstream
    transfer: Transfer
    is_under_way: bool = True

    async def compute(self, job: Job) -> EngineSequence:
        """Have the prompt computed; when this returns, the transfer may begin."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def first_token() -> None:
            if not done.done():
                done.set_result(None)

        replica = self.upstream.replica
        sequence = replica.submit(
            job.prompt_tokens, 1, 1, "length", first_token, block_hashes=job.block_hashes
        )
        self.upstream.in_flight += 1
        try:
            await done
        finally:
            self.is_under_way = False
            self.upstream.in_flight -= 1
            replica.cancel(sequence)
        return sequence


@dataclass(slots=True, kw_only=True)
class GatewayExchange:
    """A request in progress. ``source`` is its own random generator, from the seed and its id. ``prefill`` is
    what another replica does for it first, if prefill and decode are separate."""

    request: web.Request
    endpoint: Dialect
    entry: TruthEntry
    source: random.Random
    faults: FaultSettings
    early_role: bool
    session_header: SessionHeader | None
    prefill: Prefill | None = None
    hung_up: bool = False  # a fault has closed the connection: the client has not

    @property
    def transport(self) -> asyncio.Transport:
        transport = self.request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        return transport

    async def answer(self, job: Job, replica: Replica) -> web.StreamResponse:
        """Have the replica do the job, with the fault in the entry."""
        fault = self.entry.fault
        if fault == "close_before":
            self.hung_up = True
            self.transport.close()
            return web.Response()
        status = http_status(fault) if fault else None
        if status is not None:
            return await self.send_error(status, "SimulatedFault", FAULT_MESSAGE)
        if fault == "empty":
            none = job.results and replace(job.results, texts=())
            job = replace(job, output_tokens=0, finish_reason="stop", eos=False, results=none)
        if job.stream:
            return await self._stream(job, replica)
        return await self._whole(job, replica)

    async def send_error(self, status: int, kind: str, message: str) -> web.StreamResponse:
        retry = {"Retry-After": "1"} if status == 429 else {}
        return await self._send(self._error(status, kind, message), status, retry)

    async def _stream(self, job: Job, replica: Replica) -> web.StreamResponse:
        if self.request.version < (1, 1):
            raise RequestError(400, "BadRequestError", "A streamed answer needs HTTP/1.1.")
        response = web.StreamResponse(headers=self._headers("text/event-stream; charset=utf-8"))
        response.enable_chunked_encoding()
        await response.prepare(self.request)
        self.entry.status = 200
        template = FORMATS[job.endpoint].stream
        assert template is not None  # jobs of other APIs are not streamed
        stream = TokenStream(
            self.transport,
            template(job),
            job,
            fault=self.entry.fault,
            strike_at=self.faults.after_tokens,
            stall_s=self.faults.stall_ns * 1e-9,
        )
        if self.early_role:
            stream.open()
        try:
            sequence = await self._generate(job, replica, stream.token, stream.done)
        finally:
            self.hung_up = stream.hung_up
            self.entry.token_ns = stream.token_ns
            self.entry.first_token_ns = stream.token_ns[0] if stream.token_ns else None
            self.entry.eos_ns = stream.eos_ns
            self.entry.output_tokens = len(stream.token_ns) + (stream.eos_ns is not None)
        if not stream.hung_up:
            await response.write_eof(stream.tail(sequence.cached_tokens))
            self.entry.complete = stream.complete
        return response

    async def _whole(self, job: Job, replica: Replica) -> web.StreamResponse:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = max(1, job.output_tokens)

        def count_down() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        sequence = await self._generate(job, replica, count_down, done)
        body = msgspec.json.encode(FORMATS[job.endpoint].whole(job, sequence.cached_tokens))
        match self.entry.fault:
            case "reset" | "cut":
                return await self._break_off(body)
            case "stall":
                await asyncio.sleep(self.faults.stall_ns * 1e-9)
            case "truncated":
                return await self._send(body[: len(body) // 2])
            case "garbage":
                return await self._send(GARBAGE)
            case "error_object":
                return await self._send(self._error(500, "InternalServerError", FAULT_MESSAGE))
        response = await self._send(body)
        self.entry.output_tokens = 0 if job.results else job.output_tokens
        self.entry.complete = True
        return response

    async def _generate(
        self, job: Job, replica: Replica, sink: TokenSink, done: asyncio.Future[None]
    ) -> EngineSequence:
        """Wait for ``done``; then the sequence has ended, and its part of the entry is written."""
        transfer = None
        if self.prefill is not None:
            prefilled = await self.prefill.compute(job)
            self._note(prefilled)
            self.entry.prefilled_ns, transfer = time.time_ns(), self.prefill.transfer
        sequence = replica.submit(
            job.prompt_tokens,
            max(1, job.output_tokens),
            self.faults.slow_factor if self.entry.fault == "slow" else 1,
            job.finish_reason,
            sink,
            block_hashes=job.block_hashes,
            transfer=transfer,
        )
        try:
            await done
        finally:
            replica.cancel(sequence)
            self._note(sequence)
        return sequence

    def _note(self, sequence: EngineSequence) -> None:
        """Write what became of a sequence: its prompt is that of the first one, if there are two."""
        self.entry.preemptions += sequence.preemptions
        if self.entry.scheduled_ns is not None:
            sequence.cached_tokens = self.entry.cached_tokens
            return
        self.entry.cached_tokens = sequence.cached_tokens
        if sequence.scheduled_ns is not None:
            self.entry.scheduled_ns = sequence.scheduled_ns + time.time_ns() - time.monotonic_ns()

    async def _break_off(self, body: bytes) -> web.StreamResponse:
        """Send half of the body, then close the connection."""
        response = web.StreamResponse(headers=self._headers("application/json"))
        response.content_length = len(body)
        await response.prepare(self.request)
        self.entry.status = 200
        await response.write(body[: len(body) // 2])
        self.hung_up = True
        if self.entry.fault == "reset":
            reset_connection(self.transport)
        else:
            self.transport.close()
        return response

    async def _send(
        self, body: bytes, status: int = 200, extra: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        headers = self._headers("application/json") | dict(extra or {})
        response = web.Response(body=body, status=status, headers=headers)
        self.entry.status = status
        await response.prepare(self.request)
        await response.write_eof()
        return response

    def _error(self, status: int, kind: str, message: str) -> bytes:
        return msgspec.json.encode(FORMATS[self.endpoint].error(status, kind, message))

    def _headers(self, content_type: str) -> dict[str, str]:
        served_by = {"X-Served-By": self.entry.replica} if self.entry.replica else {}
        of_session = {}
        if self.session_header is not None and self.entry.replica:
            of_session = session_fields(self.session_header, self.entry.replica)
        return {
            "Content-Type": content_type,
            "X-Request-Id": self.entry.request_id,
            **served_by,
            **of_session,
        }

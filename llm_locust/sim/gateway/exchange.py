"""One request for inference, from its headers to its entry in the truth log."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiohttp import web

from llm_locust.sim.answers import chunks, jobs, messages, responses
from llm_locust.sim.answers.jobs import Job, RequestError
from llm_locust.sim.answers.stream import TokenStream, reset_connection
from llm_locust.sim.answers.template import FAULT_MESSAGE, GARBAGE, error_object
from llm_locust.sim.engine.scheduler import EngineSequence
from llm_locust.sim.faults import http_status
from llm_locust.sim.gateway.replica import Replica, TokenSink, Transfer, Upstream, session_fields
from llm_locust.sim.settings import FaultSettings
from llm_locust.sim.truth import TruthEntry
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK
from llm_locust.wire.headers import SessionHeader

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


#: What writes the answers of each API that is simulated.
FORMATS: Mapping[Dialect, Any] = {
    CHAT: chunks,
    COMPLETIONS: chunks,
    RESPONSES: responses,
    MESSAGES: messages,
    EMBEDDINGS: jobs,
    RERANK: jobs,
}


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
        stream = TokenStream(
            self.transport,
            FORMATS[job.endpoint].stream_template(job),
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
        body = _json(FORMATS[job.endpoint].whole_body(job, sequence.cached_tokens))
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
        made = messages.error_object if self.endpoint is MESSAGES else error_object
        return _json(made(status, kind, message))

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


def _json(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content)

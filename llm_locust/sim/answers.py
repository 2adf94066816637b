"""Answers of the simulated APIs: their formats, and one request's from its headers to the truth log."""

import asyncio
import base64
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec
from aiohttp import web

from llm_locust.sim.engine import EngineSequence
from llm_locust.sim.faults import http_status
from llm_locust.sim.jobs import Job, RequestError, ResultsAsked
from llm_locust.sim.replica import Replica, TokenSink, Transfer, Upstream, reset_connection, session_fields
from llm_locust.sim.settings import FaultSettings
from llm_locust.sim.telemetry import TruthEntry
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK
from llm_locust.wire.headers import SessionHeader

DONE = b"data: [DONE]\n\n"
GARBAGE = b'data: {"id": "chatcmpl-, "choices": [{"delta"\n\n'
FAULT_MESSAGE = "A simulated fault: the engine died."

#: Placeholder of a token's text in an event that is rendered to be split. Neither a command line, the source
#: of the models' names, nor a header, the source of the id, can contain the null character.
TEXT_MARK = "\x00text"
_TEXT_SLOT = rb"\u0000text"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTemplate:
    """All events of one streamed answer, each as its SSE bytes.

    A token's event is ``before + escaped text + after``; ``last_after`` has the finish reason. An end without
    text has such an event too, unless ``silent_end``. If ``counts`` is not empty, both are printf templates
    for the token's number, from 1, plus each of ``counts``. ``closing`` takes the prompt tokens from the
    prefix cache for usage, or None to leave them out.
    """

    opening: tuple[bytes, ...]  # before the first token, without text
    before: bytes
    after: bytes
    last_after: bytes
    counts: tuple[int, ...] = ()
    silent_end: bool = False
    error: Callable[[int], bytes]  # an error object after that many tokens, and the end of the stream
    closing: Callable[[int | None], bytes]  # from the last token to the end of the stream

    def token(self, escaped: bytes, number: int, last: bool) -> bytes:
        """Event of the ``number``-th token."""
        after = self.last_after if last else self.after
        if self.counts:
            after = after % tuple(number + count for count in self.counts)
        return self.before + escaped + after

    def end(self, number: int) -> bytes:
        """Event of an end without text, as the ``number``-th token; empty if there is none."""
        return b"" if self.silent_end else self.token(b"", number, last=True)


def error_object(status: int, kind: str, message: str) -> dict[str, Any]:
    """Error in the form of OpenAI-compatible servers."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def data_event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def split_at_text(event: bytes) -> tuple[bytes, bytes]:
    """The parts before and after :data:`TEXT_MARK` in a rendered event."""
    before, _, after = event.partition(_TEXT_SLOT)
    return before, after


# --- ``/v1/chat/completions`` and ``/v1/completions``


def chat_template(job: Job) -> StreamTemplate:
    """Role delta (chat), a chunk per token, usage if requested, ``[DONE]``."""
    before, after = split_at_text(data_event(_chunk(job, TEXT_MARK, None)))
    _, last_after = split_at_text(data_event(_chunk(job, TEXT_MARK, job.finish_reason)))
    counts: tuple[int, ...] = ()
    if job.continuous_usage:
        after, last_after = _with_running_usage(job, after), _with_running_usage(job, last_after)
        counts = (job.prompt_tokens, 0)
    return StreamTemplate(
        opening=(data_event(_role_chunk(job)),) if job.endpoint is CHAT else (),
        before=before,
        after=after,
        last_after=last_after,
        counts=counts,
        error=lambda _: data_event(error_object(500, "InternalServerError", FAULT_MESSAGE)) + DONE,
        closing=lambda cached_tokens: _chat_closing(job, cached_tokens),
    )


def chat_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    text = job.text.whole(job.text_tokens)
    chat = job.endpoint is CHAT
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": job.finish_reason}
    kind = {"object": "chat.completion"} if chat else {}
    return (
        _head(job) | kind | {"choices": [choice], "usage": _chat_usage(job, job.output_tokens, cached_tokens)}
    )


def _chat_usage(job: Job, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    details = {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    return {
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        **details,
    }


def _head(job: Job) -> dict[str, Any]:
    chat = job.endpoint is CHAT
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{job.request_id}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": job.created_s,
        "model": job.model,
    }


def _chunk(job: Job, text: str, finish_reason: str | None) -> dict[str, Any]:
    content = {"delta": {"content": text}} if job.endpoint is CHAT else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
    return _head(job) | {"choices": [choice]}


def _role_chunk(job: Job) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    usage = {"usage": _chat_usage(job, 0)} if job.continuous_usage else {}
    return _head(job) | {"choices": [choice]} | usage


def _chat_closing(job: Job, cached_tokens: int | None) -> bytes:
    # The last token's chunk has the finish reason; without a token it needs a chunk of its own.
    finish = data_event(_chunk(job, "", job.finish_reason)) if job.output_tokens == 0 else b""
    if not job.include_usage:
        return finish + DONE
    usage = _head(job) | {"choices": [], "usage": _chat_usage(job, job.output_tokens, cached_tokens)}
    return finish + data_event(usage) + DONE


def _with_running_usage(job: Job, after: bytes) -> bytes:
    """``after`` as a printf template of the total and of the completion tokens so far."""
    usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%%d,"completion_tokens":%%d}' % job.prompt_tokens
    end = b"}\n\n"
    return after.removesuffix(end).replace(b"%", b"%%") + usage + end


# --- Typed events, of ``/v1/messages`` and ``/v1/responses``


def _event(kind: str, **fields: Any) -> bytes:
    content = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), content)


# --- ``/v1/messages``: typed events of one block of text, no ``[DONE]``


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def messages_template(job: Job) -> StreamTemplate:
    """``message_start`` to ``message_stop``, a ``content_block_delta`` per token."""
    delta = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT_MARK})
    before, after = split_at_text(delta)
    return StreamTemplate(
        opening=(
            _event("message_start", message=_message_answer(job, [], None, _messages_usage(job, 1, None))),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _event("ping"),
        ),
        before=before,
        after=after,
        last_after=after,
        silent_end=True,
        error=lambda _: _event("error", error={"type": "overloaded_error", "message": FAULT_MESSAGE}),
        closing=lambda cached_tokens: _messages_closing(job, cached_tokens),
    )


def messages_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    text = {"type": "text", "text": job.text.whole(job.text_tokens)}
    usage = _messages_usage(job, job.output_tokens, cached_tokens)
    return _message_answer(job, [text], _STOP_REASONS[job.finish_reason], usage)


def messages_error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}}


def _messages_closing(job: Job, cached_tokens: int | None) -> bytes:
    # The message started before its prompt was looked up in the cache: the last usage repeats all counts.
    tells_all = cached_tokens is not None
    usage = (
        _messages_usage(job, job.output_tokens, cached_tokens)
        if tells_all
        else {"output_tokens": job.output_tokens}
    )
    delta = {"stop_reason": _STOP_REASONS[job.finish_reason], "stop_sequence": None}
    return b"".join(
        (
            _event("content_block_stop", index=0),
            _event("message_delta", delta=delta, usage=usage),
            _event("message_stop"),
        )
    )


def _message_answer(
    job: Job, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, int]
) -> dict[str, Any]:
    return {
        "id": f"msg_{job.request_id}",
        "type": "message",
        "role": "assistant",
        "model": job.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _messages_usage(job: Job, output_tokens: int, cached_tokens: int | None) -> dict[str, int]:
    """In this API ``input_tokens`` are those of the prompt that were not in the cache."""
    return {
        "input_tokens": job.prompt_tokens - (cached_tokens or 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens or 0,
        "output_tokens": output_tokens,
    }


# --- ``/v1/responses``: typed events with sequence numbers, no ``[DONE]``


def responses_template(job: Job) -> StreamTemplate:
    """``response.created`` to ``response.completed``, a ``response.output_text.delta`` per token."""
    opening = _opening(job)
    # sequence_number is last, so that the only count is after the text.
    delta = _event("response.output_text.delta", **_place(job), delta=TEXT_MARK, logprobs=[])
    before, after = split_at_text(delta)
    end = b"}\n\n"
    after = after.removesuffix(end).replace(b"%", b"%%") + b',"sequence_number":%d' + end
    return StreamTemplate(
        opening=opening,
        before=before,
        after=after,
        last_after=after,
        silent_end=True,
        counts=(len(opening) - 1,),
        error=lambda tokens: _responses_error(len(opening) + tokens),
        closing=lambda cached_tokens: _responses_closing(job, len(opening) + job.text_tokens, cached_tokens),
    )


def responses_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    message = _message_item(job, _status(job), job.text.whole(job.text_tokens))
    return _response(job, _status(job), [message], _responses_usage(job, cached_tokens))


def _opening(job: Job) -> tuple[bytes, ...]:
    started = _response(job, "in_progress", [])
    item = {**_message_item(job, "in_progress", ""), "content": []}
    return (
        _event("response.created", response=started, sequence_number=0),
        _event("response.in_progress", response=started, sequence_number=1),
        _event("response.output_item.added", output_index=0, item=item, sequence_number=2),
        _event("response.content_part.added", **_place(job), part=_part(""), sequence_number=3),
    )


def _responses_closing(job: Job, number: int, cached_tokens: int | None) -> bytes:
    text = job.text.whole(job.text_tokens)
    item = _message_item(job, _status(job), text)
    done = _response(job, _status(job), [item], _responses_usage(job, cached_tokens))
    return b"".join(
        (
            _event("response.output_text.done", **_place(job), text=text, sequence_number=number),
            _event("response.content_part.done", **_place(job), part=_part(text), sequence_number=number + 1),
            _event("response.output_item.done", output_index=0, item=item, sequence_number=number + 2),
            _event("response.completed", response=done, sequence_number=number + 3),
        )
    )


def _responses_error(number: int) -> bytes:
    return _event("error", code="server_error", message=FAULT_MESSAGE, param=None, sequence_number=number)


def _status(job: Job) -> str:
    return "completed" if job.finish_reason == "stop" else "incomplete"


def _place(job: Job) -> dict[str, Any]:
    return {"item_id": f"msg_{job.request_id}", "output_index": 0, "content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(job: Job, status: str, text: str) -> dict[str, Any]:
    return {
        "id": f"msg_{job.request_id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)],
    }


def _response(
    job: Job, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "id": f"resp_{job.request_id}",
        "object": "response",
        "created_at": job.created_s,
        "model": job.model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "output": output,
        "usage": usage,
    }


def _responses_usage(job: Job, cached_tokens: int | None) -> dict[str, Any]:
    return {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens or 0},
        "output_tokens": job.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.prompt_tokens + job.output_tokens,
    }


# --- Answers with a result for each input: vectors and scores, equal for equal texts


def results_body(job: Job, cached_tokens: int | None) -> dict[str, Any]:
    """The answer to a job that asks for results."""
    asked = job.results
    assert asked is not None
    usage = {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
    if asked.query is None:
        data = [_embedding(asked, place, text) for place, text in enumerate(asked.texts)]
        return {"object": "list", "model": job.model, "data": data, "usage": usage}
    scores = [Random(f"{asked.query}\n{text}").random() for text in asked.texts]
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[: asked.top_n]
    results = [{"index": place, "relevance_score": scores[place]} for place in best]
    return {"id": f"rerank-{job.request_id}", "model": job.model, "results": results, "usage": usage}


def _embedding(asked: ResultsAsked, place: int, text: str) -> dict[str, Any]:
    source = Random(zlib.crc32(text.encode("utf-8", "replace")))
    raw = source.randbytes(asked.dimensions)
    values = [(byte - 127.5) / 127.5 for byte in raw]
    norm = sum(value * value for value in values) ** 0.5
    vector = [round(value / norm, 6) for value in values]
    packed = (
        base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if asked.in_base64 else vector
    )
    return {"object": "embedding", "index": place, "embedding": packed}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What writes the answers of one API.

    ``whole`` makes the body of an answer that is not streamed, of a job and the prompt tokens from the prefix
    cache, or None to leave them out. ``stream`` is None for an API without streams. ``error``
    takes the status, the error's name at an OpenAI-compatible server, and its text.
    """

    whole: Callable[[Job, int | None], dict[str, Any]]
    stream: Callable[[Job], StreamTemplate] | None = None
    error: Callable[[int, str, str], dict[str, Any]] = error_object


_CHAT_FORMAT = AnswerFormat(chat_body, chat_template)
_RESULTS_FORMAT = AnswerFormat(results_body)

#: Of each API that is simulated.
FORMATS: Mapping[Dialect, AnswerFormat] = {
    CHAT: _CHAT_FORMAT,
    COMPLETIONS: _CHAT_FORMAT,
    RESPONSES: AnswerFormat(responses_body, responses_template),
    MESSAGES: AnswerFormat(messages_body, messages_template, messages_error),
    EMBEDDINGS: _RESULTS_FORMAT,
    RERANK: _RESULTS_FORMAT,
}


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
                self._transport.write(_http_chunk(event))

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
                self._send(_http_chunk(self._template.token(text, self._tokens, last)))
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
                self._transport.write(_http_chunk(end))
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
                self._transport.write(_http_chunk(GARBAGE))
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


def _http_chunk(event: bytes) -> bytes:
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


# --- One request for inference, from its headers to its entry in the truth log


@dataclass(slots=True, kw_only=True)
class GatewayExchange:
    """A request in progress. ``source`` is its own random generator, from the seed and its id. ``prefill`` is
    what another replica does for it first, if prefill and decode are separate."""

    request: web.Request
    endpoint: Dialect
    entry: TruthEntry
    source: Random
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

"""Answers of the simulated APIs: whole, or as server-sent events of templates in which few bytes change."""

import base64
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from llm_locust.sim.jobs import Job, ResultsAsked
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK

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

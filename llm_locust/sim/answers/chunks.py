"""Answers of ``/v1/chat/completions`` and ``/v1/completions``."""

from typing import Any

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.answers.template import (
    DONE,
    FAULT_MESSAGE,
    TEXT_MARK,
    StreamTemplate,
    data_event,
    error_object,
    split_at_text,
)
from llm_locust.wire.dialects.chat import CHAT


def stream_template(job: Job) -> StreamTemplate:
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
        closing=lambda cached_tokens: _closing(job, cached_tokens),
    )


def whole_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    """Answer without streaming; its usage includes ``cached_tokens`` of the prompt, unless None."""
    text = job.text.whole(job.text_tokens)
    chat = job.endpoint is CHAT
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": job.finish_reason}
    kind = {"object": "chat.completion"} if chat else {}
    return _head(job) | kind | {"choices": [choice], "usage": _usage(job, job.output_tokens, cached_tokens)}


def _usage(job: Job, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
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
    usage = {"usage": _usage(job, 0)} if job.continuous_usage else {}
    return _head(job) | {"choices": [choice]} | usage


def _closing(job: Job, cached_tokens: int | None) -> bytes:
    # The last token's chunk has the finish reason; without a token it needs a chunk of its own.
    finish = data_event(_chunk(job, "", job.finish_reason)) if job.output_tokens == 0 else b""
    if not job.include_usage:
        return finish + DONE
    usage = _head(job) | {"choices": [], "usage": _usage(job, job.output_tokens, cached_tokens)}
    return finish + data_event(usage) + DONE


def _with_running_usage(job: Job, after: bytes) -> bytes:
    """``after`` as a printf template of the total and of the completion tokens so far."""
    usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%%d,"completion_tokens":%%d}' % job.prompt_tokens
    end = b"}\n\n"
    return after.removesuffix(end).replace(b"%", b"%%") + usage + end

"""Answers of ``/v1/messages``: typed events of one block of text, no ``[DONE]``."""

from typing import Any

import msgspec

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.answers.template import FAULT_MESSAGE, TEXT_MARK, StreamTemplate, split_at_text

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


def stream_template(job: Job) -> StreamTemplate:
    """``message_start`` to ``message_stop``, a ``content_block_delta`` per token."""
    delta = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT_MARK})
    before, after = split_at_text(delta)
    return StreamTemplate(
        opening=(
            _event("message_start", message=_message(job, [], None, _usage(job, 1, None))),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _event("ping"),
        ),
        before=before,
        after=after,
        last_after=after,
        silent_end=True,
        error=lambda _: _event("error", error={"type": "overloaded_error", "message": FAULT_MESSAGE}),
        closing=lambda cached_tokens: _closing(job, cached_tokens),
    )


def whole_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    """Answer without streaming; its usage includes ``cached_tokens`` of the prompt, unless None."""
    text = {"type": "text", "text": job.text.whole(job.text_tokens)}
    usage = _usage(job, job.output_tokens, cached_tokens)
    return _message(job, [text], _STOP_REASONS[job.finish_reason], usage)


def error_object(status: int, kind: str, message: str) -> dict[str, Any]:
    """Error in this API's form. ``kind`` is its name at an OpenAI-compatible server."""
    return {"type": "error", "error": {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}}


def _closing(job: Job, cached_tokens: int | None) -> bytes:
    # The message started before its prompt was looked up in the cache: the last usage repeats all counts.
    tells_all = cached_tokens is not None
    usage = (
        _usage(job, job.output_tokens, cached_tokens) if tells_all else {"output_tokens": job.output_tokens}
    )
    delta = {"stop_reason": _STOP_REASONS[job.finish_reason], "stop_sequence": None}
    return b"".join(
        (
            _event("content_block_stop", index=0),
            _event("message_delta", delta=delta, usage=usage),
            _event("message_stop"),
        )
    )


def _event(kind: str, **fields: Any) -> bytes:
    content = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), content)


def _message(
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


def _usage(job: Job, output_tokens: int, cached_tokens: int | None) -> dict[str, int]:
    """In this API ``input_tokens`` are those of the prompt that were not in the cache."""
    return {
        "input_tokens": job.prompt_tokens - (cached_tokens or 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens or 0,
        "output_tokens": output_tokens,
    }

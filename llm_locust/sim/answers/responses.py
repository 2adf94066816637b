"""Answers of ``/v1/responses``: typed events with sequence numbers, no ``[DONE]``."""

from typing import Any

import msgspec

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.answers.template import FAULT_MESSAGE, TEXT_MARK, StreamTemplate, split_at_text


def stream_template(job: Job) -> StreamTemplate:
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
        error=lambda tokens: _error(len(opening) + tokens),
        closing=lambda cached_tokens: _closing(job, len(opening) + job.text_tokens, cached_tokens),
    )


def whole_body(job: Job, cached_tokens: int | None = None) -> dict[str, Any]:
    """Answer without streaming; its usage includes ``cached_tokens`` of the prompt, unless None."""
    message = _message(job, _status(job), job.text.whole(job.text_tokens))
    return _response(job, _status(job), [message], _usage(job, cached_tokens))


def _opening(job: Job) -> tuple[bytes, ...]:
    started = _response(job, "in_progress", [])
    item = {**_message(job, "in_progress", ""), "content": []}
    return (
        _event("response.created", response=started, sequence_number=0),
        _event("response.in_progress", response=started, sequence_number=1),
        _event("response.output_item.added", output_index=0, item=item, sequence_number=2),
        _event("response.content_part.added", **_place(job), part=_part(""), sequence_number=3),
    )


def _closing(job: Job, number: int, cached_tokens: int | None) -> bytes:
    text = job.text.whole(job.text_tokens)
    item = _message(job, _status(job), text)
    done = _response(job, _status(job), [item], _usage(job, cached_tokens))
    return b"".join(
        (
            _event("response.output_text.done", **_place(job), text=text, sequence_number=number),
            _event("response.content_part.done", **_place(job), part=_part(text), sequence_number=number + 1),
            _event("response.output_item.done", output_index=0, item=item, sequence_number=number + 2),
            _event("response.completed", response=done, sequence_number=number + 3),
        )
    )


def _error(number: int) -> bytes:
    return _event("error", code="server_error", message=FAULT_MESSAGE, param=None, sequence_number=number)


def _event(kind: str, **fields: Any) -> bytes:
    content = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), content)


def _status(job: Job) -> str:
    return "completed" if job.finish_reason == "stop" else "incomplete"


def _place(job: Job) -> dict[str, Any]:
    return {"item_id": f"msg_{job.request_id}", "output_index": 0, "content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(job: Job, status: str, text: str) -> dict[str, Any]:
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


def _usage(job: Job, cached_tokens: int | None) -> dict[str, Any]:
    return {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens or 0},
        "output_tokens": job.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.prompt_tokens + job.output_tokens,
    }

"""What the doctor's checks are given: options, lists of models, answers."""

from typing import Any

import numpy as np

from llm_locust.client.probing import Listing, Plain
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.doctor.finding import Examination
from llm_locust.doctor.stream import SeenStream
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import read_body
from llm_locust.wire.draft import Reply


def asked(**of: Any) -> Examination:
    """Options of an examination for 10 users."""
    return Examination(users=10, **of)


def listing(*models: str, status: int = 200) -> Listing:
    """A list of these models, or an answer with another status."""
    return Listing("/v1", list(models) if status == 200 else None, Plain(status, b""))


def answer(
    arrivals_ms: list[float],
    *,
    output_tokens: int | None = None,
    outcome: Outcome = Outcome.OK,
    headers: dict[bytes, bytes] | None = None,
    has_done: bool = True,
    asked_tokens: int = 32,
    **of: Any,
) -> SeenStream:
    """An answer whose tokens arrived so long after the request; ``of`` are further fields of the record."""
    fields: dict[str, Any] = {"token_source": TokenSource.USAGE, "status": 200, "input_tokens": 8}
    record = RequestRecord(
        request_id="r",
        name="doctor",
        outcome=outcome,
        scheduled_ns=0,
        started_ns=0,
        ended_ns=0,
        arrivals_ns=np.array([ms * 1e6 for ms in arrivals_ms], dtype=np.int64),
        output_tokens=len(arrivals_ms) if output_tokens is None else output_tokens,
        **(fields | of),
    )
    return SeenStream(asked_tokens, record, reply(), headers or {}, has_done)


def reply() -> Reply:
    """A whole reply."""
    message = b'{"role":"assistant","content":"a"}'
    return read_body(CHAT, b'{"choices":[{"index":0,"message":%b,"finish_reason":"stop"}]}' % message)

"""Answers with a result for each input: vectors and scores, equal for equal texts."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_locust.sim.answers.jobs import Job

#: Dimensions of a vector where the request does not say them, and the most that it may.
DIMENSIONS = 384
MAX_DIMENSIONS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsAsked:
    """What an answer is made of: ``texts``, with a ``query`` scores of them, without one their vectors."""

    texts: Sequence[str]
    query: str | None = None
    top_n: int | None = None
    dimensions: int = DIMENSIONS
    in_base64: bool = False


def embedded(given: str | list[str | int | list[int]]) -> list[str]:
    """The texts, token ids as words; a list of numbers is one text."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(item, int) for item in given):
        return [" ".join(map(str, given))]
    return [" ".join(map(str, item)) if isinstance(item, list) else str(item) for item in given]


def whole_body(job: "Job", cached_tokens: int | None) -> dict[str, Any]:
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

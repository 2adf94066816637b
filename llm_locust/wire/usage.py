"""Token counts by the server."""

from dataclasses import dataclass
from typing import Any

import msgspec

from llm_locust.wire.payload import Count, count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts by the server. ``None`` where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the input, out of the prefix cache
    reasoning_tokens: int | None = None  # of the output


class _Details(msgspec.Struct, gc=False, omit_defaults=True):
    cached_tokens: Count = None
    reasoning_tokens: Count = None


class UsageFields(msgspec.Struct, gc=False, omit_defaults=True):
    """Usage as it is sent, in both spellings: chat and completions, and responses."""

    prompt_tokens: Count = None
    input_tokens: Count = None
    completion_tokens: Count = None
    output_tokens: Count = None
    cached_tokens: Count = None
    prompt_cache_hit_tokens: Count = None
    reasoning_tokens: Count = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


NO_USAGE = UsageFields()


def usage_of(sent: UsageFields | dict[str, Any] | None) -> Usage | None:
    """The counts; None where nothing was sent."""
    if sent is None:
        return None
    raw = msgspec.to_builtins(sent) if isinstance(sent, UsageFields) else sent
    given = _details(raw, "prompt_tokens_details", "input_tokens_details")
    made = _details(raw, "completion_tokens_details", "output_tokens_details")
    return Usage(
        input_tokens=_first_count(raw, "prompt_tokens", "input_tokens"),
        output_tokens=_first_count(raw, "completion_tokens", "output_tokens"),
        cached_tokens=_first_count(given | raw, "cached_tokens", "prompt_cache_hit_tokens"),
        reasoning_tokens=_first_count(raw | made, "reasoning_tokens"),
    )


def _details(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((raw[n] for n in names if isinstance(raw.get(n), dict)), {})


def _first_count(raw: dict[str, Any], *names: str) -> int | None:
    counts = (count_of(raw.get(name)) for name in names)
    return next((c for c in counts if c is not None), None)

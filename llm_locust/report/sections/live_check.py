"""The live view held against the records, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Line, Tone
from llm_locust.report.text import number, percent


def live_check(summary: Mapping[str, Any]) -> Iterator[Line]:
    """How near the live view's percentiles were, where there was one."""
    part = summary.get("live_check") or {}
    largest, reason = part.get("largest") or {}, part.get("reason")
    if reason:
        yield Line(f"live percentiles not compared: {reason}", Tone.FAINT)
    elif part.get("unequal"):
        unequal = ", ".join(part["unequal"])
        yield Line(f"the live view had other samples than the records: {unequal}", Tone.WARN)
    elif part.get("within") is False:
        which = f"{largest.get('place')} {str(largest.get('metric')).upper()}"
        yield Line(
            f"live percentiles differ from the records by {percent(largest.get('difference'))} ({which}: "
            f"live {number(largest.get('live_ms'))}, records {number(largest.get('exact_ms'))} ms)",
            Tone.WARN,
        )
    elif largest:
        yield Line(
            f"live percentiles were within {percent(largest.get('difference'))} of the records", Tone.FAINT
        )

"""The live view held against the records, in words."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.peers import LiveCheck
from llm_locust.report.section import Line, Tone
from llm_locust.report.text import number, percent


def live_check(part: LiveCheck | None) -> Iterator[Line]:
    """How near the live view's percentiles were, where there was one."""
    if part is None:
        return
    largest = part.largest
    if part.reason:
        yield Line(f"live percentiles not compared: {part.reason}", Tone.FAINT)
    elif part.unequal:
        unequal = ", ".join(part.unequal)
        yield Line(f"the live view and the records have different numbers of samples: {unequal}", Tone.WARN)
    elif largest and part.within is False:
        live, exact = number(largest.live_ms), number(largest.exact_ms)
        yield Line(
            f"live percentiles differ from the records by {percent(largest.difference)} "
            f"({largest.place} {largest.metric.upper()}: live {live}, records {exact} ms)",
            Tone.WARN,
        )
    elif largest:
        yield Line(
            f"live percentiles matched the records to within {percent(largest.difference)}", Tone.FAINT
        )

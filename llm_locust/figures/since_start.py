"""Since the start: all requests of a run that goes on, or that has dropped some."""

from typing import TYPE_CHECKING, Annotated

from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import clean, count, moment, number, percent, sentence
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_WHOLE = "the whole run"
_ENDED = "scheduled after the warm-up, ended by now"


class LatencySinceStart(SummaryPart, frozen=True):
    """One latency of the ok requests, from a sketch; times are off by at most ``relative_error`` of them."""

    samples: Annotated[int, key("number of values", _ENDED)]
    mean: Annotated[float | None, key("mean, ms; exact", _ENDED)]
    p50: Annotated[float | None, key("50th percentile, ms; sketch", _ENDED)]
    p90: Annotated[float | None, key("90th percentile, ms; sketch", _ENDED)]
    p99: Annotated[float | None, key("99th percentile, ms; sketch", _ENDED)]


class SinceStart(SummaryPart, frozen=True):
    """All requests of a run so far. Counts are exact. Other sections are of the latest span, or of what was
    not dropped."""

    start: Annotated[str, key("first scheduled request, ISO 8601, UTC", _ENDED)]
    until: Annotated[str, key("last end, ISO 8601, UTC", _ENDED)]
    requests: Annotated[int, key("requests that ended, of any outcome", _ENDED)]
    ok: Annotated[int, key("of these, ok", _ENDED)]
    failed: Annotated[int, key("of these, failed", _ENDED)]
    cancelled: Annotated[int, key("of these, cancelled", _ENDED)]
    error_rate: Annotated[float | None, key("failed / (ok + failed)", _ENDED)]
    goodput_ratio: Annotated[
        float | None, key("good / (ok + failed) where the SLO applies; null without an SLO", _ENDED)
    ]
    input_tokens: Annotated[int, key("prompt tokens of answered requests", _ENDED)]
    output_tokens: Annotated[int, key("tokens received", _ENDED)]
    latency_ms: Annotated[dict[str, LatencySinceStart], key("by latency, as in `latency_ms`", _ENDED)]
    relative_error: Annotated[float, key("bound of the error of a percentile, as a share of it", "sketches")]


class DroppedPart(SummaryPart, frozen=True):
    """Records that a run no longer has (`--keep`). The window begins after them; `since_start` has them."""

    records: Annotated[int, key("number of records that were dropped", _WHOLE)]
    batches: Annotated[int, key("number of batches that they came in", _WHOLE)]
    until: Annotated[str, key("last end of a dropped request, ISO 8601, UTC", _WHOLE)]
    to: Annotated[str, key("folder that has their copy, for `llm-locust merge`", _WHOLE)]


def show(summary: "Summary") -> Section | None:
    """All requests of a run that goes on, or that has dropped some; the other sections are of its latest
    span, or of what it has."""
    found, gone = summary.since_start, summary.dropped
    if found is None:
        return None if gone is None else Section("Dropped", (_dropped(gone),))
    good = "" if found.goodput_ratio is None else f"goodput {percent(found.goodput_ratio)}"
    counted = [f"{count(found.requests)} requests", f"{count(found.failed)} failed", good]
    columns = (Column("since the start", left=True), *map(Column, ("mean", "p50", "p90", "p99")))
    rows = tuple(
        TableRow((f"{LATENCY[metric].label}, ms", *map(number, (each.mean, each.p50, each.p90, each.p99))))
        for metric, each in found.latency_ms.items()
        if each.samples and metric in LATENCY
    )
    others = "the span" if gone is None else "what was not dropped"
    note = Line(
        f"percentiles are right to {percent(found.relative_error)}; all other sections are of {others}"
    )
    total = Line(sentence([*counted, f"since {moment(found.start)}"]))
    title, lines = ("So far", (total,)) if gone is None else ("Whole run", (_dropped(gone), total))
    return Section(title, lines, Table(columns, rows) if rows else None, (note,))


def _dropped(gone: DroppedPart) -> Line:
    text = (
        f"{count(gone.records)} records until {moment(gone.until)} were dropped (--keep) after their upload "
        f"to {clean(gone.to)}: `llm-locust merge` of the run and that copy gives the whole run"
    )
    return Line(text, Tone.WARN, verbatim=True)

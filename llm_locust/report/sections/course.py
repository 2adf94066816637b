"""The course of a run: a warm-up at its beginning, times without an answer, and a drift over hours."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import clean, count, number, percent, plural, seconds, sentence, short

Part = Mapping[str, Any]

#: A time without an answer is worth a line from here on, where answers came so often that chance does not
#: make it: in a Poisson process one gap of 22,000 is over ten mean ones.
NOTABLE_SPAN_S = 5.0
NOTABLE_GAPS = 10.0

_MEASURES = (
    ("ttft_p50_ms", "TTFT p50, ms"),
    ("ttft_p99_ms", "TTFT p99, ms"),
    ("goodput_ratio", "goodput, %"),
    ("error_rate", "errors, %"),
    ("output_tokens_per_s", "output tokens/s"),
)
_RATIOS = {"goodput_ratio", "error_rate"}


def warmup(summary: Part) -> Section | None:
    """What the beginning of the run was like; None where it was like the rest, or nobody can tell."""
    part = summary.get("steadiness") or {}
    if not part.get("warmup_like") and part.get("settled") is not False:
        return None
    return Section("Warm-up", (Line(str(part.get("reason") or ""), Tone.WARN),))


def reliability(summary: Part) -> Section | None:
    """How often somebody was served; None where nothing failed, was tried again, or was long in coming."""
    part = summary.get("reliability") or {}
    requests = summary.get("requests") or {}
    retries = part.get("retries") or {}
    if not (requests.get("failed") or retries.get("total") or _was_interrupted(summary, part)):
        return None
    lines = [*_shares(part), *_spans(part), *_retries(retries)]
    return Section("Reliability", tuple(lines)) if lines else None


def standstill(summary: Part) -> Section | None:
    """When nothing came though requests were under way; None where that was not so."""
    part = (summary.get("reliability") or {}).get("standstill") or {}
    spans = part.get("spans") or ()
    if not spans:
        return None
    longest = max(spans, key=lambda span: span["seconds"])
    headline = Line(f"STOOD STILL: {_stood(longest)}", Tone.BAD)
    others = [span for span in spans if span is not longest]
    total = f"{plural(part['n'], 'time')}, {seconds(part['seconds'])} in all"
    more = Line(f"{total}; also {sentence([_stood(span) for span in others[:_MOST_STOOD]], '; ')}")
    meaning = f"no answer ended and none was streamed for longer than {seconds(part.get('limit_s'))}"
    return Section(
        "Standstill", (headline, *([more] if others else []), Line(meaning, Tone.FAINT)), alarm=True
    )


def stuck(summary: Part) -> Section | None:
    """Requests from before the window that hung in it; None without any."""
    n = (summary.get("requests") or {}).get("stuck")
    if not n:
        return None
    text = f"STUCK: {plural(n, 'request')} from before the window hung in it and were given up"
    counted = "they are not among the requests scheduled; goodput has them as bad, latencies as lower bounds"
    return Section("Stuck", (Line(text, Tone.BAD), Line(counted, Tone.FAINT)), alarm=True)


def _stood(span: Part) -> str:
    under_way = plural(span["in_flight"], "request")
    return (
        f"no answer for {seconds(span['seconds'])} from {seconds(span['start_s'])} on, "
        f"with {under_way} under way"
    )


def _shares(part: Part) -> Iterator[Line]:
    if part.get("ok_share") is not None:
        good = f", {percent(part['good_share'])} a good one" if part.get("good_share") is not None else ""
        asked = plural(part.get("seconds"), "second")
        yield Line(f"{percent(part['ok_share'])} of {asked} had an ok answer{good}")


def _was_interrupted(summary: Part, part: Part) -> bool:
    longest = (part.get("longest_without_ok") or {}).get("seconds")
    if longest is None:
        return False
    rate = (summary.get("throughput") or {}).get("requests_per_s") or 0.0
    return bool(longest >= NOTABLE_SPAN_S and longest * rate >= (NOTABLE_GAPS if rate else 0.0))


def _spans(part: Part) -> Iterator[Line]:
    ok, good = part.get("longest_without_ok"), part.get("longest_without_good")
    spans = [
        f"longest without {what} {seconds(span.get('seconds'))}, from {seconds(span.get('start_s'))} on"
        for what, span in (("an ok answer", ok), ("a good one", good if good != ok else None))
        if span
    ]
    if spans:
        yield Line(sentence(spans))


def _retries(retries: Part) -> Iterator[Line]:
    if retries.get("total"):
        yield Line(
            f"{plural(retries.get('requests'), 'request')} sent again, "
            f"{plural(retries['total'], 'time')} in all: a pooled connection was stale",
            Tone.WARN,
        )


#: Standstills that are told beside the longest one.
_MOST_STOOD = 3

#: Of a process's name in a table.
_NODE_LENGTH = 20


def drift(summary: Part) -> Section | None:
    """What changed per hour; None where the run is too short to tell."""
    part = summary.get("drift") or {}
    measures = part.get("measures")
    if not measures:
        return None
    columns = (
        Column("Line", left=True),
        Column("at start"),
        Column("at end", wide=True),
        Column("an hour"),
        Column("95 %"),
        Column("of start"),
    )
    found = set(part.get("found") or ())
    rows = tuple(
        _drift_row(label, measures[key], 100.0 if key in _RATIOS else 1.0, key in found)
        for key, label in _MEASURES
        if measures.get(key)
    ) + tuple(
        _drift_row(
            f"memory of {clean(short(node, _NODE_LENGTH))}, MiB", told, 1.0, bool(told.get("beyond_noise"))
        )
        for node, told in (part.get("client_rss_mib") or {}).items()
    )
    return Section("Drift", (_headline(part),), Table(columns, rows), tuple(_how(summary, part)))


def _headline(part: Part) -> Line:
    named = [label for key, label in _MEASURES if key in (part.get("found") or ())]
    grows = [told.get("beyond_noise") for told in (part.get("client_rss_mib") or {}).values()]
    if any(grows):
        named.append("client memory")
    if not named:
        return Line("none beyond noise", Tone.GOOD)
    return Line(f"beyond noise: {sentence([label.partition(',')[0] for label in named], ', ')}", Tone.WARN)


def _drift_row(label: str, measure: Part, scale: float, found: bool) -> Row:
    start, end, slope = (scale * measure[key] for key in ("at_start", "at_end", "per_hour"))
    low, high = (scale * value for value in measure["ci95"])
    relative = measure.get("relative_per_hour")
    return Row(
        (
            label,
            number(start),
            number(end),
            _signed(slope),
            f"{_signed(low)} .. {_signed(high)}",
            "" if relative is None or scale != 1 else f"{_signed(100 * relative)} %",
        ),
        Tone.WARN if found else Tone.PLAIN,
    )


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _how(summary: Part, part: Part) -> Iterator[Line]:
    yield Line(
        f"a line through {count(part.get('bins'))} bins of {seconds(part.get('bin_s'))}, by least squares; "
        "intervals widened for bins that resemble their neighbours",
        Tone.FAINT,
    )
    requests = summary.get("requests") or {}
    given_up = (requests.get("cancelled") or 0) + ((requests.get("by_outcome") or {}).get("timeout") or 0)
    if given_up:
        text = f"TTFT is of ok requests: {count(given_up)} that were cut, left or timed out are left out"
        yield Line(text, Tone.WARN)
    workers = (summary.get("completeness") or {}).get("workers") or ()
    most = [worker["rss_mib_max"] for worker in workers if worker.get("rss_mib_max") is not None]
    if most:
        yield Line(
            f"memory of a worker: {number(max(most))} MiB at most; no series of it is recorded", Tone.FAINT
        )

"""The course of a run: a warm-up at its beginning, times without an answer, and a drift over hours."""

from collections.abc import Iterator

from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, moment, number, percent, plural, seconds, sentence
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.summary_types.course import (
    Drift,
    DriftLine,
    DroppedPart,
    Reliability,
    Retries,
    Standstills,
    StandstillSpan,
)

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


def parts(summary: Summary) -> Section | None:
    """Starts of the master that one run consists of, and the time without load between them."""
    found = summary.parts
    if found is None or len(found.parts) < 2:
        return None
    share = "" if found.down_share is None else f" ({percent(found.down_share)} of the whole)"
    lines = [Line(f"{seconds(found.down_s)} without load{share}, excluded from rates", Tone.WARN)]
    for gap in found.gaps:
        text = f"gap of {seconds(gap.seconds)} after {gap.after}, from {moment(gap.start)}: {clean(gap.why)}"
        lines.append(Line(text, verbatim=True))
    columns = (Column("part", verbatim=True), Column("from"), Column("load"), Column("requests"))
    rows = tuple(
        TableRow((clean(part.name), moment(part.start), seconds(part.seconds), count(part.requests)))
        for part in found.parts
    )
    return Section(plural(len(found.parts), "part"), tuple(lines), Table(columns, rows))


def since_start(summary: Summary) -> Section | None:
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


def warmup(summary: Summary) -> Section | None:
    """What the beginning of the run was like; None where it was like the rest, or nobody can tell."""
    part = summary.steadiness
    if not part.warmup_like and part.settled is not False:
        return None
    title = "Overload" if part.overload else "Slower with time" if part.slower else "Warm-up"
    return Section(title, (Line(part.reason, Tone.BAD if part.overload else Tone.WARN),))


def reliability(summary: Summary) -> Section | None:
    """How often somebody was served; None where nothing failed, was tried again, or was long in coming."""
    part = summary.reliability
    requests = summary.requests
    retries = part.retries
    if not (requests.failed or retries.total or _was_interrupted(summary, part)):
        return None
    lines = [*_shares(part), *_spans(part), *_slow(part.standstill), *_retries(retries)]
    return Section("Reliability", tuple(lines)) if lines else None


def standstill(summary: Summary) -> Section | None:
    """When nothing came though requests were under way; None where that was not so."""
    part = summary.reliability.standstill
    if part is None or not part.spans:
        return None
    spans = part.spans
    longest = max(spans, key=lambda span: span.seconds)
    headline = Line(f"STOOD STILL: {stood(longest)}", Tone.BAD)
    others = [span for span in spans if span is not longest]
    total = f"{plural(part.n, 'time')}, {seconds(part.seconds)} in all"
    more = Line(f"{total}; also {sentence([stood(span) for span in others[:_MOST_STOOD]], '; ')}")
    meaning = "nothing came for anybody, for longer than requests that ended well usually wait"
    return Section(
        "Standstill", (headline, *([more] if others else []), Line(meaning, Tone.FAINT)), alarm=True
    )


def stuck(summary: Summary) -> Section | None:
    """Requests from before the window that hung in it; None without any."""
    n = summary.requests.stuck
    if not n:
        return None
    were = "was" if n == 1 else "were"
    text = f"STUCK: {plural(n, 'request')} from before the window hung in it and {were} given up"
    counted = "they are not counted as scheduled; they are bad in goodput and lower bounds in latencies"
    return Section("Stuck", (Line(text, Tone.BAD), Line(counted, Tone.FAINT)), alarm=True)


def stood(span: StandstillSpan) -> str:
    """What a standstill was, without its subject."""
    under_way = plural(span.in_flight, "request")
    since = f"{seconds(span.seconds)} from {seconds(span.start_s)} on"
    return f"nothing came for {since}, with {under_way} in flight"


def _shares(part: Reliability) -> Iterator[Line]:
    if part.ok_share is not None:
        good = f", {percent(part.good_share)} a good one" if part.good_share is not None else ""
        asked = plural(part.seconds, "second")
        yield Line(f"{percent(part.ok_share)} of {asked} had an ok answer{good}")


def _was_interrupted(summary: Summary, part: Reliability) -> bool:
    if part.longest_without_ok is None:
        return False
    longest = part.longest_without_ok.seconds
    rate = summary.throughput.requests_per_s or 0.0
    return longest >= NOTABLE_SPAN_S and longest * rate >= (NOTABLE_GAPS if rate else 0.0)


def _spans(part: Reliability) -> Iterator[Line]:
    ok, good = part.longest_without_ok, part.longest_without_good
    spans = [
        f"longest without {what} {seconds(span.seconds)}, from {seconds(span.start_s)} on"
        for what, span in (("an ok answer", ok), ("a good one", good if good != ok else None))
        if span
    ]
    if spans:
        yield Line(sentence(spans))


def _slow(part: Standstills | None) -> Iterator[Line]:
    """Silences that are no standstill: a slow server is slow."""
    if part is not None and part.slow_longest_s is not None:
        longest, total = seconds(part.slow_longest_s), seconds(part.slow_seconds)
        each = f"up to {longest} at a time, {total} in all"
        yield Line(f"slow: nothing came for {each}, as is usual for such requests", Tone.FAINT)


def _retries(retries: Retries) -> Iterator[Line]:
    if retries.total:
        yield Line(
            f"{plural(retries.requests, 'request')} sent again, "
            f"{plural(retries.total, 'time')} in all: a pooled connection was stale",
            Tone.WARN,
        )


#: Standstills that are told beside the longest one.
_MOST_STOOD = 3


def drift(summary: Summary) -> Section | None:
    """What changed per hour; None where the run is too short to tell."""
    part = summary.drift
    measures = part.measures
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
    found, memory, names = set(part.found or ()), part.client_rss_mib or {}, summary.completeness.names
    rows = tuple(
        _drift_row(label, line, 100.0 if key in _RATIOS else 1.0, key in found)
        for key, label in _MEASURES
        if (line := measures[key])
    ) + tuple(
        _drift_row(f"memory of {names.get(node, clean(node))}, MiB", told, 1.0, told.beyond_noise)
        for node, told in memory.items()
    )
    return Section("Drift", (_headline(part),), Table(columns, rows), tuple(_how(summary, part)))


def _headline(part: Drift) -> Line:
    named = [label for key, label in _MEASURES if key in (part.found or ())]
    grows = [told.beyond_noise for told in (part.client_rss_mib or {}).values()]
    if any(grows):
        named.append("client memory")
    if not named:
        return Line("none beyond noise", Tone.GOOD)
    return Line(f"beyond noise: {sentence([label.partition(',')[0] for label in named], ', ')}", Tone.WARN)


def _drift_row(label: str, measure: DriftLine, scale: float, found: bool) -> TableRow:
    start, end, slope = (scale * value for value in (measure.at_start, measure.at_end, measure.per_hour))
    low, high = (scale * value for value in measure.ci95)
    relative = measure.relative_per_hour
    return TableRow(
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


def _how(summary: Summary, part: Drift) -> Iterator[Line]:
    yield Line(
        f"a line through {count(part.bins)} bins of {seconds(part.bin_s)}, by least squares; "
        "intervals widened for bins that resemble their neighbours",
        Tone.FAINT,
    )
    requests = summary.requests
    given_up = requests.cancelled + requests.by_outcome["timeout"]
    if given_up:
        text = f"TTFT is over successful requests ({count(given_up)} unfinished ones excluded)"
        yield Line(text, Tone.WARN)
    workers = summary.completeness.workers
    most = [worker.rss_mib_max for worker in workers if worker.rss_mib_max is not None]
    if most:
        yield Line(f"memory of a worker: at most {number(max(most))} MiB; not recorded over time", Tone.FAINT)

"""What was measured over all requests: counts, latencies, rates and tokens."""

from collections.abc import Iterator

from msgspec import UNSET
from msgspec.structs import asdict

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    bounds,
    clean,
    count,
    counted,
    duration_ms,
    estimate,
    is_cut,
    mark,
    meaning,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import LATENCY, View, shown_in
from llm_locust.metrics.gates import ODD_COUNTS
from llm_locust.metrics.summary_types.base import LatencyTable
from llm_locust.metrics.summary_types.requests import ImagesOfNumber, RequestCounts
from llm_locust.metrics.summary_types.tokens import CountFaults, InputFigures, LengthErrors, Pace, Tokens
from llm_locust.report.sections.completeness import live_check

_Statistic = tuple[str, str, bool]

#: Share of the time in flight that may cross the window's edges on balance. In a steady load as many requests
#: come in as go out; in a window of fewer than ten times a request's time they may differ by chance alone.
_EDGES_OF_A_STEADY_LOAD = 0.1

#: Keys of summary.json, their heads, and whether they need a wide table.
_STATISTICS: tuple[_Statistic, ...] = (
    ("mean", "mean", False),
    ("std", "std", True),
    ("min", "min", True),
    ("p50", "p50", False),
    ("p75", "p75", True),
    ("p90", "p90", False),
    ("p95", "p95", False),
    ("p99", "p99", False),
    ("p99_9", "p99.9", True),
    ("max", "max", True),
)


def requests(summary: Summary) -> Section:
    """How many requests there were, and how they ended."""
    part = summary.requests
    rate = f" ({percent(part.error_rate)})" if part.error_rate else ""
    text = sentence(
        [
            f"{count(part.scheduled)} scheduled",
            f"{count(part.sent)} sent" if part.sent != part.scheduled else "",
            f"{count(part.ok)} ok",
            f"{count(part.failed)} failed{rate}",
            f"{count(part.cancelled)} cancelled" if part.cancelled else "",
            f"{count(part.lost)} lost" if part.lost else "",
            f"{count(part.unsent)} never sent" if part.unsent else "",
            f"{count(part.stuck)} stuck from before the window" if part.stuck else "",
            f"{plural(part.resent, 'request')} retried; only the retry counts" if part.resent else "",
        ]
    )
    outside = part.failed_outside
    apart = Line(f"{plural(outside, 'request')} failed outside the window, as in its warm-up: in no figure")
    is_bad = part.failed or part.lost or part.unsent or part.stuck
    counted = Line(text, Tone.WARN if is_bad else Tone.PLAIN)
    return Section("Requests", (counted, *([apart] if outside else []), *_given_up(part)))


def left_open(summary: Summary) -> Section | None:
    """That the server did not end responses whose answers were over; None where it did."""
    n = summary.requests.left_open
    if not n:
        return None
    share = percent(n / summary.requests.population)
    text = (
        f"{plural(n, 'response')} ({share}) left open by the server after the answer's end: its user waited, "
        "and the connection was lost"
    )
    return Section("Left open", (Line(text, Tone.WARN),))


def _given_up(part: RequestCounts) -> Iterator[Line]:
    """Who was cancelled, and by whom."""
    broken = part.cut_broken
    judged = f", of them {count(broken)} had broken a limit" if broken is not None else ""
    text = sentence(
        [
            f"cut: {count(part.cut)} ({percent(part.cut_share)}){judged}" if part.cut else "",
            f"{plural(part.abandoned, 'user')} gave up" if part.abandoned else "",
        ]
    )
    if text:
        yield Line(text, Tone.WARN if is_cut(part.cut_share) else Tone.PLAIN)


def latency(summary: Summary) -> Section | None:
    """The latency table in milliseconds, of ``ok`` requests; a percentile of too few is marked. None where
    no request has a latency."""
    part = summary.latency_ms
    statistics = _statistics(summary)
    columns = (
        Column("Latency, ms", left=True),
        *(Column(head, wide=wide) for _, head, wide in statistics),
        Column("n"),
    )
    cut = is_cut(summary.requests.cut_share)
    rows = tuple(
        _statistics_row(label, part[key], statistics, cut=cut) for key, label in _latency_keys(summary)
    )
    if not rows:
        return None
    table = Table(columns, rows)
    notes = [
        *(() if summary.tokens.unread.is_common else unread(summary)),
        *_adjusted(summary),
        *_network(part["connect"], part["rtt"]),
        *_approximate(part["itl"]),
        *live_check(summary.live_check),
        *marks(table),
    ]
    return Section("Latency", table=table, notes=tuple(notes))


def marks(table: Table) -> tuple[Line, ...]:
    """What the marks of a table's figures mean."""
    return tuple(meaning_in(table))


def intervals(summary: Summary) -> Section | None:
    """The 95 % interval of each percentile of the latency table; None where there is none."""
    part = summary.latency_ms
    places = [s for s in _statistics(summary) if s[0].startswith("p")]
    rows = tuple(
        TableRow((label, *(bounds(part[key], place) for place, *_ in places)))
        for key, label in _latency_keys(summary)
        if any(part[key].intervals().values())
    )
    if not rows:
        return None
    columns = (Column("95 %, ms", left=True), *(Column(head, wide=wide) for _, head, wide in places))
    return Section("Intervals", table=Table(columns, rows).without_empty(UNDEFINED))


def _statistics(summary: Summary) -> tuple[_Statistic, ...]:
    """The usual columns, or those of the percentiles that were asked for."""
    asked = summary.analysis.percentiles if summary.analysis else None
    if not asked:
        return _STATISTICS
    plain = [statistic for statistic in _STATISTICS if not statistic[0].startswith("p")]
    places = [(key, key.replace("_", "."), False) for key in asked]
    return (*plain[:-1], *places, plain[-1])


def _latency_keys(summary: Summary) -> Iterator[tuple[str, str]]:
    part = summary.latency_ms
    known = {m.key: part[m.key].known.n + part[m.key].known.censored for m in shown_in(View.REPORT)}
    for metric in shown_in(View.REPORT):
        if metric.is_from_scheduled and not summary.is_open_loop:
            continue
        if not known[metric.key]:
            continue  # nothing to measure it by, as the first token of answers that are not streamed
        if not _says_nothing(metric.key, summary):
            yield metric.key, metric.label


#: A latency within this share of another, or lengths within this share of each other, are the same.
_ALIKE = 0.02


def _says_nothing(key: str, summary: Summary) -> bool:
    """Whether a row would be another one once more."""
    part = summary.latency_ms
    if key == "ttfo":
        return part["ttfo"] == part["ttft"]
    if key == "ttft_started":
        return all(
            _are_alike(part[key].figure(place), part["ttft"].figure(place)) for place in ("p50", "p99")
        )
    if key == "prefill_ms_per_1k_input":  # of prompts of one length it is TTFT in another unit
        return _are_alike(summary.tokens.input.figure("p50"), summary.tokens.input.figure("p99"))
    return False


def _are_alike(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= _ALIKE * max(value, other)


def _statistics_row(
    label: str, stats: LatencyTable, statistics: tuple[_Statistic, ...], *, cut: bool
) -> TableRow:
    cells = (estimate(stats, key, cut=cut) for key, *_ in statistics)
    return TableRow((label, *cells, count(stats.known.n)))


def _approximate(itl: LatencyTable) -> Iterator[Line]:
    """The stated error of ITL percentiles, where the gaps were too many to be kept."""
    error = itl.known.relative_error
    if error is not UNSET and error:
        yield Line(f"ITL percentiles within {percent(error)} (counted in buckets)", Tone.FAINT)


def buffered(summary: Summary) -> Iterator[Line]:
    """That something on the way held the stream back, and what that means; nothing where it did not."""
    if summary.tokens.is_buffered:
        gap = number(summary.latency_ms["itl"].known.p50)
        yield Line(
            f"the stream was buffered on the way: TTFT, TPOT and ITL are not the server's (median gap {gap} "
            f"ms, {number(summary.tokens.tokens_per_event)} tokens per event); llm-locust doctor URL names "
            "the proxy's settings. A server that decodes several tokens a step, and sends an event for each, "
            "looks the same",
            Tone.WARN,
        )


def unread(summary: Summary) -> Iterator[Line]:
    """That tokens came in a field that is not read."""
    part = summary.tokens.unread
    if part.field is not None:
        yield Line(
            f'events have text in "{clean(part.field)}", which is not read ({percent(part.share)} of the '
            "answers): TTFT begins after it, and its tokens are not in TPOT and ITL",
            Tone.WARN,
            verbatim=True,
        )


def _adjusted(summary: Summary) -> Iterator[Line]:
    """The percentiles in which each failed request stands as +∞, where there are such requests."""
    if not summary.requests.failed:
        return
    part = summary.latency_ms_adjusted
    figures = [
        f"{LATENCY[key].label} p50 {_or_beyond(part[key], 'p50')}, p99 {_or_beyond(part[key], 'p99')}"
        for key in ("ttft", "e2el")
    ]
    yield Line(f"failures counted as infinite: {sentence(figures)}", Tone.FAINT)


def _or_beyond(stats: LatencyTable, key: str) -> str:
    return "> max" if key in stats.known.beyond else estimate(stats, key)


def _network(connect: LatencyTable, rtt: LatencyTable) -> Iterator[Line]:
    opened = count(connect.known.n)
    facts = [
        f"connect p50 {_short(connect)} ({opened} new connections)" if connect.known.n else "",
        f"network RTT p50 {_short(rtt)}" if rtt.known.n else "",
    ]
    if any(facts):
        yield Line(sentence(facts), Tone.FAINT)


def _short(stats: LatencyTable) -> str:
    return f"{mark(stats, 'p50')}{duration_ms(stats.figure('p50'))}"


def throughput(summary: Summary) -> Section:
    """Rates over the window, and how many requests were under way at a time."""
    part, counted = summary.throughput, summary.tokens
    inputs, total = number(part.input_tokens_per_s), number(part.total_tokens_per_s)
    concurrency = f"concurrency {number(part.concurrency_mean)} mean · {count(part.concurrency_peak)} peak"
    if summary.is_without_output:
        text = f"{number(part.requests_per_s)} requests/s · {inputs} input tokens/s"
        return Section("Throughput", (Line(text), Line(concurrency), *_unsteady(summary)))
    lines = [
        Line(
            f"{number(part.requests_per_s)} requests/s · {number(part.output_tokens_per_s)} output tokens/s"
        ),
        Line(f"{inputs} input tokens/s · {total} total tokens/s"),
        *_characters(summary),
        *([Line(_seen(counted.user_tps, "tokens"))] if counted.user_tps.n else []),
        *([Line(_seen(counted.chars_per_s, "chars"))] if counted.chars_per_s.n else []),
        Line(concurrency),
        *_unsteady(summary),
    ]
    paces = (counted.user_tps, counted.chars_per_s)
    few = meaning(*(mark(pace, key) for pace in paces for key in ("p50", "p1")))
    return Section("Throughput", tuple(lines), notes=tuple(few))


def _unsteady(summary: Summary) -> Iterator[Line]:
    """That the rates are of other requests than those in flight, and why."""
    law, window_s = summary.littles_law, summary.window.seconds
    share, time_s = law.edges_share, law.time_s
    if share is None or time_s is None or share <= _EDGES_OF_A_STEADY_LOAD:
        return
    why = (
        f"a request takes {seconds(time_s)} and the window only {seconds(window_s)}: measure longer"
        if time_s > _EDGES_OF_A_STEADY_LOAD * window_s
        else "the load, or how long requests take, changed in the window"
    )
    crossing = f"{percent(share)} of the time in flight crosses the window's edges"
    yield Line(f"not the rates of a steady load: {crossing}; {why}", Tone.WARN)


def _seen(pace: Pace, unit: str) -> str:
    """What the users got, and the slowest of them."""
    return f"a user sees {estimate(pace, 'p50')} {unit}/s (median), {estimate(pace, 'p1')} (p1)"


def _characters(summary: Summary) -> Iterator[Line]:
    """The rate that does not depend on a tokenizer, where the answers' lengths are known."""
    rate, each = summary.throughput.output_chars_per_s, summary.tokens.chars_per_token
    if rate is not None and each is not None:
        yield Line(f"{number(rate)} output chars/s · {number(each)} chars per token")


def tokens(summary: Summary) -> Section:
    """Lengths of prompts and answers, who counted them, and what an event of the stream is."""
    part = summary.tokens
    keys = ("mean", "p50", "p99", "max")
    rows = tuple(
        TableRow((label, *(number(stats.figure(key)) for key in keys), count(stats.n)))
        for label, stats in (("input", part.input), ("output", part.output))
        if label == "input" or not summary.is_without_output
    )
    columns = (Column("Tokens per request", left=True), *map(Column, keys), Column("n"))
    counted = [
        f"{percent(share)} {_COUNTED_BY.get(source, source)}"
        for source, share in asdict(part.source).items()
        if share
    ]
    by = Line(f"output tokens counted by: {sentence(counted) or UNDEFINED}", Tone.FAINT)
    notes = [
        *([] if summary.is_without_output else [by]),
        *_events_remark(part),
        *_fault_remarks(part.faults, Tone.WARN if counts(summary) is None else Tone.FAINT),
        *_opening_remark(part.opening),
        *_hidden_remark(part),
        *_length_remark(part.input.error),
        *_delivery_remark(part),
    ]
    return Section("Tokens", table=Table(columns, rows), notes=tuple(notes))


_COUNTED_BY = {"estimate": "estimate (cut before they were counted: events × tokens per event)"}


#: Characters of a token event above which it seems to have several tokens: of an English text one has 4 to 5.
_CHARS_OF_A_TOKEN = 6.0


def _events_remark(part: Tokens) -> Iterator[Line]:
    """That events were counted as tokens, and seem to have several each."""
    chars = part.chars_per_event
    if part.source.events and chars is not None and chars >= _CHARS_OF_A_TOKEN:
        yield Line(
            f"token events that were counted as tokens have {number(chars)} characters each, more than "
            "tokens have: tokens/s are too low and TPOT is too high; give --tokenizer",
            Tone.WARN,
        )


#: What the server's count is, by the fault; the rest of the sentence says what became of it.
_FAULTS = {
    "fewer_than_events": "fewer than the events with text",
    "more_than_bytes": "more than the bytes of the text",
    "more_than_text": "several an event, more than the text can have",
    "beyond_any_length": "more than any model can make",
    "reasoning_left_out": "without the reasoning that came",
    "other_total": "not what its total leaves for the output",
}


def _fault_remarks(faults: CountFaults, tone: Tone) -> Iterator[Line]:
    """What does not fit about the server's counts."""
    for fault, words in _FAULTS.items():
        if n := getattr(faults, fault):
            yield Line(f"the server's count of output tokens is {words}: {plural(n, 'answer')}", tone)


def _opening_remark(opening: float | None) -> Iterator[Line]:
    """That a first event brings several tokens, where the server says so."""
    if opening is not None and opening > 1.05:
        yield Line(
            f"the first event of an answer brings {number(opening)} tokens: TTFT is when all of these had "
            "come, TPOT is of those after them",
            Tone.WARN,
        )


def counts(summary: Summary) -> Section | None:
    """That the server's token counts contradict its own events, in more than a few answers."""
    faults, source = summary.tokens.faults, summary.tokens.source
    if faults.not_used is None or faults.not_used < ODD_COUNTS:
        return None
    worst = max(_FAULTS, key=lambda fault: getattr(faults, fault))
    instead = "the tokenizer" if source.tokenizer else "what came"
    text = (
        f"The server's counts of output tokens are not used for {percent(faults.not_used)} of the answers: "
        f"{_FAULTS[worst]}. Tokens/s, TPOT and what is judged by them are counted by {instead}"
    )
    better = "" if source.tokenizer else "; --tokenizer counts the text"
    return Section("Token counts", (Line(text + better, Tone.WARN),))


def _hidden_remark(part: Tokens) -> Iterator[Line]:
    """How much of the output never came, where the server counts reasoning that it does not stream."""
    hidden = part.hidden
    if hidden.requests and not part.unread.is_common:
        yield Line(
            f"{percent(hidden.share)} of the output tokens are reasoning that was counted and not "
            f"streamed ({count(hidden.requests)} answers): it is in tokens/s, and not in TPOT",
            Tone.WARN,
        )


def _length_remark(error: LengthErrors) -> Iterator[Line]:
    """How near the prompts came to the lengths that were asked for."""
    mean = error.mean_relative
    if mean is None:
        return
    if error.p99 == 0:
        yield Line("prompts have exactly the requested lengths, by the server's count", Tone.FAINT)
        return
    yield Line(
        f"prompts are {percent(abs(mean))} {'longer' if mean >= 0 else 'shorter'} than requested on average, "
        f"{percent(error.p50)} off (median), {percent(error.p99)} (p99)",
        Tone.FAINT,
    )


def _delivery_remark(part: Tokens) -> Iterator[Line]:
    """What tokens per event means for ITL and TTFT, where it means something."""
    each = f"{number(part.tokens_per_event)} tokens per event"
    if part.delivery == "merged":
        yield Line(f"{each}: an ITL is a gap between events, not between tokens", Tone.WARN)
    elif part.is_buffered:
        yield Line(f"{each}, and the stream was buffered on the way: see the latencies", Tone.WARN)


# --------------------
# Images of requests: their rates, and the time to a first token behind them.
# --------------------


def images(summary: Summary) -> Section | None:
    """Images per second and per request; None of a run without any."""
    part = summary.images
    if part is None:
        return None
    each = part.per_request
    pixels = "pixels unknown" if part.pixels_per_s is None else f"{_mega(part.pixels_per_s)} MPixel/s"
    line = Line(
        f"{number(part.images_per_s)} images/s · {pixels} · {number(each.mean)} images a request "
        f"(at most {count(each.max)}) · {_mega(part.pixels_per_image)} MPixel an image"
    )
    columns = (
        Column("Images", left=True),
        *map(Column, ("TTFT p50 ms", "p99 ms", "input tokens, mean", "n")),
    )
    table = Table(columns, tuple(map(_row, part.by_number)))
    return Section("Images", lines=(line,), table=table, notes=tuple(meaning_in(table)))


def _mega(pixels: float | None) -> str:
    return number(None if pixels is None else pixels * 1e-6)


def _row(part: ImagesOfNumber) -> TableRow:
    times = part.ttft_ms
    cells = (
        part.images.replace("-", "–"),
        counted(times.p50, "p50", times.n),
        counted(times.p99, "p99", times.n),
        number(part.input_tokens_mean),
        count(part.requests),
    )
    return TableRow(cells)


# --------------------
# Requests that ask for a result of each input: their batches and rates.
# --------------------


def inputs(summary: Summary) -> Section | None:
    """Inputs per second and per request; None of a run without any."""
    part = summary.inputs
    if part is None:
        return None
    columns = (
        Column("Inputs", left=True, verbatim=True),
        *map(Column, ("inputs/s", "tokens/s", "tokens each", "a request, mean", "max", "n")),
    )
    rows = [_inputs_row(clean(name), figures) for name, figures in part.by_name.items()]
    return Section("Inputs", table=Table(columns, (_inputs_row("all", part), *rows)))


def _inputs_row(label: str, part: InputFigures) -> TableRow:
    each = part.per_request
    rates = (part.inputs_per_s, part.input_tokens_per_s, part.tokens_per_input, each.mean, each.max)
    return TableRow((label, *map(number, rates), count(each.n)))

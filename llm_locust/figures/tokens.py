"""Tokens: lengths of prompts and answers, who counted them, and what an event of the stream is."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import asdict, replace

from llm_locust.core.record import TokenSource
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    count,
    number,
    percent,
    plural,
    sentence,
)
from llm_locust.metrics.columns import SOURCES, Columns, Floats, Rows
from llm_locust.metrics.requests.gaps import LATE_S
from llm_locust.metrics.requests.latency import chars_per_s, user_tps
from llm_locust.metrics.requests.rates import (
    ESTIMATE,
    HELD_MS,
    LEAST_EVENTS,
    NO_GAP_MS,
    counted_per_event,
    tokens_per_event,
    uncounted,
)
from llm_locust.metrics.stats.bootstrap import Order, order_cells
from llm_locust.metrics.stats.censoring import ordered, summarise_ascending
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.structs import Effective, Intervals, SummaryPart, key
from llm_locust.wire.usage import CountFault

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


class LengthErrors(SummaryPart, frozen=True):
    """How near prompts came to the lengths that were asked for."""

    n: Annotated[int, key("number of prompts", "ok, both known")]
    mean_relative: Annotated[float | None, key("(got − asked) / asked: mean", "ok, both known")]
    p50: Annotated[float | None, key("(got − asked) / asked: median of its absolute value", "ok, both known")]
    p99: Annotated[float | None, key("(got − asked) / asked: p99 of its absolute value", "ok, both known")]
    share_within_1_percent: Annotated[
        float | None, key("(got − asked) / asked: share within 1 %", "ok, both known")
    ]


_LENGTH = "ok, scheduled in the window, count known"


class TokenCounts(SummaryPart, frozen=True):
    """Tokens of a request."""

    n: Annotated[int, key("number of requests", _LENGTH)]
    mean: Annotated[float | None, key("tokens a request", _LENGTH)]
    p50: Annotated[float | None, key("tokens a request", _LENGTH)]
    p99: Annotated[float | None, key("tokens a request", _LENGTH)]
    max: Annotated[float | None, key("tokens a request", _LENGTH)]


class InputTokenCounts(TokenCounts, frozen=True):
    """Tokens of a prompt."""

    error: LengthErrors


class Pace(SummaryPart, frozen=True):
    """The speed that users see; its slow end is the low one."""

    n: Annotated[int, key("number of answers")]
    mean: Annotated[float | None, key("mean and percentiles")]
    p1: Annotated[float | None, key("mean and percentiles")]
    p10: Annotated[float | None, key("mean and percentiles")]
    p50: Annotated[float | None, key("mean and percentiles")]
    ci95: Intervals
    n_effective: Effective


class CountedBy(SummaryPart, frozen=True):
    """Who counted tokens."""

    usage: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    tokenizer: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    events: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    estimate: Annotated[
        float | None,
        key(
            "the same: events × the run's tokens per event, where a request was cut or failed before the "
            "server counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]


_FAULTS = key("answers by [what does not fit](definitions.md#counts-that-cannot-be-true)", "ok")


class HiddenTokens(SummaryPart, frozen=True):
    """Reasoning that was counted and did not come."""

    requests: Annotated[
        int, key("[hidden reasoning](definitions.md#tokens-without-an-event): answers that have some", "ok")
    ]
    tokens: Annotated[int, key("its tokens", "ok")]
    share: Annotated[float | None, key("its share in all output tokens", "ok")]


class CountFaults(SummaryPart, frozen=True):
    """Answers whose number of output tokens by the server does not fit what came."""

    fewer_than_events: Annotated[int, _FAULTS]
    more_than_bytes: Annotated[int, _FAULTS]
    more_than_text: Annotated[int, _FAULTS]
    beyond_any_length: Annotated[int, _FAULTS]
    reasoning_left_out: Annotated[int, _FAULTS]
    other_total: Annotated[int, _FAULTS]
    not_used: Annotated[
        float | None, key("share of the answers whose number is not used, for one of these", "ok")
    ]


class UnreadText(SummaryPart, frozen=True):
    """A field of events without other text, whose text is not read."""

    field: Annotated[str | None, key("the most frequent; null without any", "ok")]
    share: Annotated[float | None, key("share of the answers that have such a field", "ok")]

    @property
    def is_common(self) -> bool:
        """Whether so many answers have one that it changes the figures of all."""
        return (self.share or 0.0) > COMMON


class Tokens(SummaryPart, frozen=True):
    """How long prompts and answers were, and how the tokens came."""

    input: InputTokenCounts
    output: TokenCounts
    tokens_per_event: Annotated[
        float | None,
        key(
            "Σ output tokens that events brought / Σ token events; 1 of a first event whose number is known",
            "ok and streamed, count known",
        ),
    ]
    opening: Annotated[
        float | None,
        key(
            "tokens of the first event: mean",
            "ok and streamed, [counted in each event](definitions.md#counts-in-each-event)",
        ),
    ]
    source: CountedBy
    hidden: HiddenTokens
    faults: CountFaults
    unread: UnreadText
    user_tps: Annotated[Pace, key("1 / tpot, tokens/s", "ok, tpot defined")]
    chars_per_s: Annotated[Pace, key("pace in characters/s", "ok, defined")]
    chars_per_token: Annotated[float | None, key("Σ characters / Σ output tokens", "ok, both known")]
    chars_per_event: Annotated[
        float | None, key("Σ characters / Σ token events", "ok and streamed, counted by events")
    ]
    delivery: Annotated[
        str | None, key("`tokens`, `merged`, `buffered` or `unread`: how the stream came", "ok and streamed")
    ]

    @property
    def is_buffered(self) -> bool:
        """Whether something between server and client held the stream back."""
        return self.delivery == "buffered"


_BY_EVENTS = SOURCES.index(TokenSource.EVENTS)

_MERGED = 1.05

#: Share of answers with unread text above which that is why few events are known.
COMMON = 0.1

#: Share of the answers whose count by the server is not used above which that is said with what it changes.
ODD_COUNTS = 0.01


def compute(run: Run) -> Tokens:
    m, ok = run.m, run.population.ok
    found, latency_ms = tokens(m.c, ok, m.credits.output_tokens), run.whole.latency_ms
    tpot_ms, for_each_ms = latency_ms["tpot"].known.p50, held_ms(m.c, ok)
    # A client that read late merges events itself, if it was as late as these are apart.
    lag_ms = float(np.median(m.c.client_lag_s[ok])) * 1e3 if len(ok) else 0.0
    late = lag_ms >= max(LATE_S * 1e3, (tpot_ms or for_each_ms or 0.0) / 2)
    times = None if late else latency_ms["itl"].known.p50, tpot_ms, for_each_ms
    return replace(found, delivery=delivery(found.tokens_per_event, *times, found.unread.share))


def tokens(c: Columns, ok: Rows, credited: Floats) -> Tokens:
    """Token counts of the requests ``ok``.

    ``input.error`` is that of the prompts' asked lengths, see
    :func:`~llm_locust.figures.tokens.length_error`. ``source`` says who counted the tokens of the
    output throughput: shares of ``credited``, those of each request of ``c`` that the window got. ``hidden``
    is the reasoning that usage counts and that did not come. ``faults`` are the answers by what does not fit
    about their server's count. ``user_tps`` is 1/tpot; its slow end is the low
    one, so it has p1 and p10.
    ``chars_per_s`` is the same pace in characters, which does not depend on who counts tokens;
    ``chars_per_token`` is Σ characters / Σ tokens.
    """
    output, order = c.output_tokens[ok], order_cells(c, ok)
    return Tokens(
        input=InputTokenCounts(
            **asdict(_lengths(c.input_tokens[ok])),
            error=length_error(c.asked_input_tokens[ok], c.input_tokens[ok]),
        ),
        output=_lengths(output),
        tokens_per_event=tokens_per_event(c, ok),
        opening=_opening(c, ok),
        source=CountedBy(**source_shares(c, credited)),
        hidden=_hidden(c, ok),
        faults=faults(c, ok),
        unread=_unread(c, ok),
        user_tps=_speeds(user_tps(c)[ok], order),
        chars_per_s=_speeds(chars_per_s(c)[ok], order),
        chars_per_token=chars_per_token(c, ok),
        chars_per_event=_chars_per_event(c, ok),
        delivery=None,
    )


def _hidden(c: Columns, ok: Rows) -> HiddenTokens:
    """Of how many requests reasoning was hidden, its tokens, and their share in all output tokens."""
    hidden, total = c.hidden_tokens[ok], float(np.nansum(c.output_tokens[ok]))
    return HiddenTokens(
        requests=int((hidden > 0).sum()),
        tokens=int(hidden.sum()),
        share=float(hidden.sum()) / total if total else None,
    )


def _opening(c: Columns, ok: Rows) -> float | None:
    """Tokens of the first event, of answers whose server counts in each event: mean."""
    counted = ok[~np.isnan(c.came_tokens[ok])]
    return float(c.opening_tokens[counted].sum()) / len(counted) if len(counted) else None


def faults(c: Columns, ok: Rows) -> CountFaults:
    """Answers by what does not fit about their count, and the share of those whose count is not used."""
    codes = c.count_fault.codes[ok]
    names = {name: code for code, name in enumerate(c.count_fault.names)}
    n = {fault.value: int((codes == names.get(fault, -2)).sum()) for fault in CountFault}
    mended = [names.get(fault, -2) for fault in (CountFault.REASONING, CountFault.TOTAL)]
    not_used = (codes >= 0) & ~(np.isin(codes, mended) & (c.source[ok] == SOURCES.index(TokenSource.USAGE)))
    return CountFaults(**n, not_used=int(not_used.sum()) / len(ok) if len(ok) else None)


def _unread(c: Columns, ok: Rows) -> UnreadText:
    """The most frequent field whose text is not read, and the share of answers that have one."""
    codes = c.unread.codes[ok]
    if not (n := int((codes >= 0).sum())):
        return UnreadText(field=None, share=0.0 if len(ok) else None)
    each = np.bincount(codes[codes >= 0], minlength=len(c.unread.names))
    most = min(range(len(each)), key=lambda code: (-each[code], c.unread.names[code]))
    return UnreadText(field=c.unread.names[most], share=n / len(ok))


def _chars_per_event(c: Columns, ok: Rows) -> float | None:
    """Characters of a token event, of streamed answers whose tokens are their events."""
    rows = ok[(c.source[ok] == _BY_EVENTS) & c.streamed[ok] & ~np.isnan(c.output_chars[ok])]
    events = int(c.events[rows].sum())
    return float(c.output_chars[rows].sum()) / events if events else None


def held_ms(c: Columns, ok: Rows) -> float | None:
    """Time from sending to the last event for each event of an answer: the median.

    Answers of :data:`LEAST_EVENTS` or more count; None without any.
    """
    rows = ok[c.streamed[ok] & (c.events[ok] >= LEAST_EVENTS)]
    return float(np.median(c.last_event_s[rows] / c.events[rows])) * 1e3 if len(rows) else None


def delivery(
    per_event: float | None,
    itl_p50_ms: float | None,
    tpot_p50_ms: float | None,
    held_p50_ms: float | None,
    unread: float | None = None,
) -> str | None:
    """How the stream came: ``tokens`` one by one, ``merged``, ``buffered`` or ``unread``; None where unknown.

    ``merged``: an ITL is a gap between events, not tokens. ``buffered``: events came in bursts after a
    silence, because something on the way held them back, and ITL and TTFT are not the server's. Most gaps
    are then under 0.1 ms while the pace is slower than that, or the answer came at once and took 0.5 ms or
    more for each of its events. Even gaps are no sign of it, however many tokens an event has.
    ``unread``: it looks so, but tokens came in a field that is not read.

    Args:
        held_p50_ms: see :func:`held_ms`.
        unread: share of the answers with text in such a field.
    """
    if per_event is None:
        return None
    slow = (tpot_p50_ms or 0.0) >= NO_GAP_MS or (held_p50_ms or 0.0) >= HELD_MS
    if slow and itl_p50_ms is not None and itl_p50_ms < NO_GAP_MS:
        return "unread" if unread and unread > COMMON else "buffered"
    return "merged" if per_event > _MERGED else "tokens"


def _lengths(values: Floats) -> TokenCounts:
    figures = summarise_ascending(ordered(values))
    return TokenCounts(**{key: figures[key] for key in TokenCounts.__struct_fields__})


def _speeds(values: Floats, order: Order) -> Pace:
    places = {"p1": 1.0, "p10": 10.0, "p50": 50.0}
    figures = summarise_ascending(ordered(values), places=places, course=Observed(order, values))
    return Pace(**{key: figures[key] for key in ("n", "mean", *places, "ci95", "n_effective")})


def show(summary: "Summary") -> Section:
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
_FAULT_WORDS = {
    "fewer_than_events": "fewer than the events with text",
    "more_than_bytes": "more than the bytes of the text",
    "more_than_text": "several an event, more than the text can have",
    "beyond_any_length": "more than any model can make",
    "reasoning_left_out": "without the reasoning that came",
    "other_total": "not what its total leaves for the output",
}


def _fault_remarks(faults: CountFaults, tone: Tone) -> Iterator[Line]:
    """What does not fit about the server's counts."""
    for fault, words in _FAULT_WORDS.items():
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


def counts(summary: "Summary") -> Section | None:
    """That the server's token counts contradict its own events, in more than a few answers."""
    faults, source = summary.tokens.faults, summary.tokens.source
    if faults.not_used is None or faults.not_used < ODD_COUNTS:
        return None
    worst = max(_FAULT_WORDS, key=lambda fault: getattr(faults, fault))
    instead = "the tokenizer" if source.tokenizer else "what came"
    text = (
        f"The server's counts of output tokens are not used for {percent(faults.not_used)} of the answers: "
        f"{_FAULT_WORDS[worst]}. Tokens/s, TPOT and what is judged by them are counted by {instead}"
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


# --- Error of prompt lengths against the lengths that were asked for


def length_error(asked: Floats, counted: Floats) -> LengthErrors:
    """Relative error of prompt lengths: (counted − asked) / asked.

    Args:
        asked: tokens that the workload asked for, NaN where it asked for none.
        counted: tokens that the server counted, NaN where it did not say; of the same shape.

    Returns:
        ``n`` requests of which both are known; ``mean_relative`` with its sign, > 0 where prompts were
        longer than asked; ``p50`` and ``p99`` of the error without its sign; and
        ``share_within_1_percent``. All but ``n`` are None where n is 0.
    """
    known = (asked > 0) & ~np.isnan(counted)
    error = (counted[known] - asked[known]) / asked[known]
    sizes = summarise_ascending(ordered(np.abs(error)), places={"p50": 50.0, "p99": 99.0})
    n = len(error)
    return LengthErrors(
        n=n,
        mean_relative=float(error.mean()) if n else None,
        p50=sizes["p50"],
        p99=sizes["p99"],
        share_within_1_percent=float(np.mean(np.abs(error) <= 0.01)) if n else None,
    )


def source_shares(c: Columns, credited: Floats) -> dict[str, float | None]:
    """Who counted: the share of each source, and of :data:`ESTIMATE`, in the sum of ``credited``.

    All are None where nothing was credited.
    """
    estimated = _BY_EVENTS if counted_per_event(c) is None else len(SOURCES)
    source = np.where(uncounted(c), estimated, c.source)
    known = ~np.isnan(credited)
    # Sorted: the order of workers is no input.
    sums = [float(np.sort(credited[known & (source == code)]).sum()) for code in range(len(SOURCES) + 1)]
    total = sum(sums)
    keys = (*(source.value for source in SOURCES), ESTIMATE)
    return {key: part / total if total else None for key, part in zip(keys, sums, strict=True)}


def chars_per_token(c: Columns, ok: Rows) -> float | None:
    """Σ characters / Σ output tokens, over the answers of which both are known."""
    rows = ok[~np.isnan(c.output_chars[ok]) & ~np.isnan(c.output_tokens[ok])]
    total = float(c.output_tokens[rows].sum())
    return float(c.output_chars[rows].sum()) / total if total else None

"""Throughput and goodput: what came out of the server per second, and how much of it was good."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from llm_locust.core.record import Doubt
from llm_locust.figures.counts import RequestCounts
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    estimate,
    mark,
    meaning,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.figures.tokens import Pace
from llm_locust.metrics.catalogue import LATENCIES, LATENCY
from llm_locust.metrics.requests.gaps import OnTime
from llm_locust.metrics.requests.judgement import ABANDONED, LOST, OUTCOME, STUCK, UNSENT
from llm_locust.metrics.requests.rates import OF_ALL, Throughput
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.parts import RequestPart
    from llm_locust.figures.summary import Summary


#: Share of the time in flight that may cross the window's edges on balance. In a steady load as many requests
#: come in as go out; in a window of fewer than ten times a request's time they may differ by chance alone.
_EDGES_OF_A_STEADY_LOAD = 0.1


def throughput_of(run: Run) -> Throughput:
    return run.whole.throughput


def show_throughput(summary: "Summary") -> Section:
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


def _unsteady(summary: "Summary") -> Iterator[Line]:
    """That the rates are of other requests than those in flight, and why."""
    law, window_s = summary.littles_law, summary.window.seconds
    share, time_s = law.edges_share, law.time_s
    if share is None or time_s is None or share <= _EDGES_OF_A_STEADY_LOAD:
        return
    if summary.has_hung:
        why = "requests hung"
    elif time_s > _EDGES_OF_A_STEADY_LOAD * window_s:
        why = f"a request takes {seconds(time_s)} and the window only {seconds(window_s)}: measure longer"
    else:
        why = "the load, or how long requests take, changed in the window"
    crossing = f"{percent(share)} of the time in flight crosses the window's edges"
    yield Line(f"not the rates of a steady load: {crossing}; {why}", Tone.WARN)


def _seen(pace: Pace, unit: str) -> str:
    """What the users got, and the slowest of them."""
    return f"a user sees {estimate(pace, 'p50')} {unit}/s (median), {estimate(pace, 'p1')} (p1)"


def _characters(summary: "Summary") -> Iterator[Line]:
    """The rate that does not depend on a tokenizer, where the answers' lengths are known."""
    rate, each = summary.throughput.output_chars_per_s, summary.tokens.chars_per_token
    if rate is not None and each is not None:
        yield Line(f"{number(rate)} output chars/s · {number(each)} chars per token")


# --- Goodput: good requests, and their share of all that were asked for


class GroupGoodput(SummaryPart, frozen=True):
    """How much of what was asked for came within the SLO."""

    slo: Annotated[dict[str, float], key("limits, ms")]
    slo_by_class: Annotated[dict[str, dict[str, float]], key("limits, ms, of each class, where these differ")]
    ratio: Annotated[float | None, key("good / judged, 0 .. 1", "`goodput.judged`")]
    judged: Annotated[
        int | None,
        key(
            "number of requests that are good or bad: ok, failed, cut ones that had broken a limit, "
            "abandoned, lost, unsent, stuck; null without an SLO",
            "see [who is in which denominator](definitions.md#who-is-in-which-denominator)",
        ),
    ]
    attainment: Annotated[
        dict[str, float | None],
        key(
            "share that held this limit, whatever the others",
            "as `ratio`, those that have this limit and can be judged by it",
        ),
    ]
    not_judged: Annotated[
        dict[str, int],
        key(
            "number of requests that cannot be judged by this limit: tpot, where more than one token came at "
            "one time",
            "ok, of those that have this limit",
        ),
    ]
    first_failed: Annotated[
        dict[str, int],
        key(
            "number of bad ones by the limit that broke first; `outcome` for failures, `abandoned` for users "
            "who left, `content_filter`, `no_answer` and `no_finish_reason` for [doubtful "
            "answers](definitions.md#doubtful-answers) within their limits, `lost` and `unsent` for requests "
            "without a record, `stuck` for those from before the window",
            "as `ratio`",
        ),
    ]
    requests_per_s: Annotated[float | None, key("good requests that ended in the window / seconds", OF_ALL)]
    output_tokens_per_s: Annotated[
        float | None, key("tokens of good requests that arrived in the window / seconds", OF_ALL)
    ]
    ci95: Annotated[
        dict[str, Interval],
        key(
            "95 % intervals of `ratio`, `requests_per_s` and `output_tokens_per_s`; null where the data "
            "cannot tell",
            "as the figure",
        ),
    ]
    n_effective: Annotated[
        dict[str, float | None],
        key("of `ratio`: as many independent requests would have its standard error", "as `ratio`"),
    ]


class Goodput(GroupGoodput, frozen=True):
    """The same, and whether a reader's tokens came in time."""

    on_time_ratio: Annotated[
        float | None,
        key(
            "mean share of tokens that came by their deadline", "ok requests whose SLO has `ttft` and `tpot`"
        ),
    ]
    on_time: OnTime


def compute(run: Run) -> Goodput:
    return run.whole.goodput


def show(summary: "Summary") -> Section:
    """How much of what was asked for came within the SLO, and what broke it first."""
    part, requests = summary.goodput, summary.requests
    if part.ratio is None and not _limits_ms(part):
        return Section("Goodput", (Line("not judged: no SLO was given", Tone.FAINT),))
    missing = [
        f"{count(n)} of them {word}"
        for n, word in (
            (requests.lost, "lost"),
            (requests.unsent, "never sent"),
            (requests.stuck, "stuck from before the window"),
        )
        if n
    ]
    text = sentence(
        [
            sentence([f"{percent(part.ratio)} of {plural(part.judged, 'request')}", *missing], ", "),
            by_time(summary),
            f"{number(part.requests_per_s)} requests/s",
            "" if summary.is_without_output else f"{number(part.output_tokens_per_s)} output tokens/s",
        ]
    )
    columns = (Column("Limit", left=True), Column("held by"), Column("failed first"))
    return Section(
        "Goodput",
        (Line(text), *_without_first_token(summary)),
        Table(columns, tuple(_limit_rows(part))),
        (*_not_counted(summary), *_not_judged(part), *_smoothness(part)),
    )


def by_time(summary: "Summary") -> str:
    """The share of the users' time, where it is another one than that of the requests."""
    ratio, times = summary.goodput.ratio, summary.user_time
    share = None if times is None or times.good is None else times.good.share
    if share is None or ratio is None or abs(share - ratio) < _ALIKE:
        return ""
    return f"{percent(share)} of the users' time"


#: Shares that differ by less are one figure.
_ALIKE = 0.01


def unplaced(summary: "Summary", counts: RequestCounts) -> str:
    """How many requests of the run were never sent or lost, and may belong to those of ``counts``."""
    run = summary.completeness
    unsent = f"{plural(run.unsent, 'request')} of the run never sent" if counts.unsent is None else ""
    lost = f"{plural(run.records_lost, 'request')} of the run lost" if counts.lost is None else ""
    return sentence([unsent, lost], ", ")


def _not_counted(summary: "Summary") -> Iterator[Line]:
    """Of some of the requests: what they may lack."""
    words = unplaced(summary, summary.requests)
    if words:
        yield Line(f"{words}: it is not known whether they belong here, and they are not counted", Tone.WARN)


#: Latencies to a first token from sent, each with all limits on that token, whatever they count from.
_FIRST_TOKENS = {
    first: frozenset(each.key for each in LATENCIES if each.is_limited and each.end is first.end)
    for first in (LATENCY["ttft"], LATENCY["ttfo"])
}


def _without_first_token(summary: "Summary") -> Iterator[Line]:
    """Which requests cannot hold a limit on the first token, because their answers have none.

    A name whose requests are of several classes is told where each class has the limit.
    """
    parts: Mapping[str, RequestPart | Summary] = summary.by_name or {"": summary}
    for latency, limits in _FIRST_TOKENS.items():
        found = []
        for name, part in parts.items():
            slos = [*part.goodput.slo_by_class.values()] or [part.goodput.slo]
            missing = part.requests.ok - part.latency_ms[latency.key].known.n
            if missing > 0 and not any(limits.isdisjoint(slo) for slo in slos):
                # Of requests that were given up or timed out some have a first token as well.
                least = "at least " if part.requests.cancelled or part.requests.failed else ""
                found.append(
                    f"{least}{count(missing)} of {plural(part.requests.ok, 'answer')}{_called(name)}"
                )
        if found:
            yield Line(
                f"{sentence(found, ', ')} have no {latency.label}, which breaks its limit: they were not "
                "streamed, or no such token came. Give their class a limit on e2el instead",
                Tone.WARN,
            )


def _called(name: str) -> str:
    return f" of {clean(name)}" if name else ""


def _not_judged(part: Goodput) -> Iterator[Line]:
    for metric, requests in part.not_judged.items():
        if requests:
            yield Line(
                f"{plural(requests, 'answer')} cannot be judged by {metric}: all tokens came at once",
                Tone.WARN,
            )


def _smoothness(part: Goodput) -> Iterator[Line]:
    """How many tokens came when a reader wanted them: on average, and in the jerkiest requests."""
    if part.on_time_ratio is None:
        return
    shares = part.on_time
    low = [f"{mark(shares, key)}{percent(shares.figure(key))} {key}" for key in ("p50", "p5", "p1")]
    mean = f"{percent(part.on_time_ratio)} of tokens arrived on time (mean of the requests)"
    yield Line(sentence([mean, *low]), Tone.FAINT)
    yield from meaning(*low)


#: What a request failed by beside a limit.
_OTHER_CAUSES = {
    OUTCOME: "(failed)",
    ABANDONED: "(the user left)",
    Doubt.CONTENT_FILTER: "(content filter)",
    Doubt.NO_ANSWER: "(reasoning, no answer)",
    Doubt.NO_FINISH_REASON: "(no finish reason)",
    LOST: "(lost)",
    UNSENT: "(never sent)",
    STUCK: "(stuck from before the window)",
}


def _limits_ms(part: Goodput) -> dict[str, tuple[float, float]]:
    """Metric -> the tightest and the widest limit that a class has."""
    found: dict[str, list[float]] = {}
    for slo in part.slo_by_class.values() or [part.slo]:
        for metric, limit_ms in slo.items():
            found.setdefault(metric, []).append(limit_ms)
    return {metric: (min(limits), max(limits)) for metric, limits in found.items()}


def limits(part: Goodput) -> dict[str, str]:
    """Metric -> its limit as text, such as "ttft ≤ 500 ms"."""
    found = {}
    for metric, (least_ms, most_ms) in _limits_ms(part).items():
        limit = f"{metric} ≤ {most_ms:,g} ms"
        if least_ms != most_ms:
            limit = f"{metric} ≤ {least_ms:,g} … {most_ms:,g} ms by class"
        found[metric] = clean(limit)
    return found


def _limit_rows(part: Goodput) -> Iterator[TableRow]:
    held, first = part.attainment, part.first_failed
    for metric, limit in limits(part).items():
        yield TableRow((limit, percent(held.get(metric)), count(first.get(metric))))
    for cause, label in _OTHER_CAUSES.items():
        if first.get(cause):
            yield TableRow((label, "", count(first[cause])))

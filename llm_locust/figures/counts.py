"""Requests: how many there were, and how they ended; and those that other users of the locustfile sent."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from llm_locust.core.record import together
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    NAME_LENGTH,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    is_cut,
    number,
    percent,
    plural,
    sentence,
    short,
    short_name,
)
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


_SCHEDULED = "`requests.scheduled`"
_POPULATION = "the population"


class GroupRequests(SummaryPart, frozen=True):
    """How many requests there were, and how they ended."""

    scheduled: Annotated[int, key("number of requests", "scheduled in the window, whatever became of them")]
    ok: Annotated[int, key("number; with `failed` and `cancelled` it adds up to `scheduled`", _SCHEDULED)]
    failed: Annotated[int, key("number; with `ok` and `cancelled` it adds up to `scheduled`", _SCHEDULED)]
    cancelled: Annotated[int, key("number; with `ok` and `failed` it adds up to `scheduled`", _SCHEDULED)]
    cut: Annotated[int, key("number that the run's end cut", "part of `cancelled`")]
    cut_share: Annotated[
        float | None,
        key(
            "cut / (population + cut); above 0.01 reports mark every latency",
            "the population and `requests.cut`",
        ),
    ]
    population: Annotated[int, key("ok + failed", _SCHEDULED)]
    error_rate: Annotated[float | None, key("failed / population", _POPULATION)]


class RequestCounts(SummaryPart, frozen=True):
    """How many requests there were, and how they ended."""

    scheduled: Annotated[int, key("number of requests", "scheduled in the window, whatever became of them")]
    sent: Annotated[int, key("number of them of which a byte was sent", _SCHEDULED)]
    ok: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    failed: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    failed_outside: Annotated[
        int, key("number that failed, as in the warm-up; in no other figure", "scheduled outside the window")
    ]
    cancelled: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    cut: Annotated[int, key("number that the run's end cut", "part of `cancelled`")]
    cut_broken: Annotated[
        int | None,
        key(
            "how many of them had broken a limit of their SLO by then; null without an SLO", "`requests.cut`"
        ),
    ]
    cut_share: Annotated[
        float | None,
        key(
            "cut / (population + cut); above 0.01 reports mark every latency",
            "the population and `requests.cut`",
        ),
    ]
    abandoned: Annotated[int, key("number whose user left before the first token", "part of `cancelled`")]
    lost: Annotated[
        int | None,
        key(
            "number of requests without a record; null where it is not known how many belong here",
            "the whole run",
        ),
    ]
    unsent: Annotated[
        int | None,
        key(
            "number of requests that were due and were never sent; null where it is not known how many "
            "belong here",
            "the whole run after its warm-up",
        ),
    ]
    stuck: Annotated[
        int,
        key(
            "number that hung in the window and were given up: "
            "[stuck](definitions.md#who-is-in-which-denominator)",
            "scheduled before the window",
        ),
    ]
    population: Annotated[int, key("ok + failed", _SCHEDULED)]
    error_rate: Annotated[float | None, key("failed / population", _POPULATION)]
    doubtful: Annotated[
        dict[str, int],
        key(
            "number of ok answers that [may not be what was asked for](definitions.md#doubtful-answers), "
            "by the reason: "
            "`content_filter`, `no_answer`, `no_finish_reason`, `unknown_finish_reason`",
            "ok",
        ),
    ]
    doubtful_rate: Annotated[float | None, key("doubtful answers of any kind / population", _POPULATION)]
    left_open: Annotated[
        int,
        key(
            "number whose answer was over, and whose response the server "
            "[left open](definitions.md#left-open)",
            _POPULATION,
        ),
    ]
    by_outcome: Annotated[dict[str, int], key("number with each outcome", _SCHEDULED)]
    resent: Annotated[
        int,
        key(
            "number of [first tries](definitions.md#sent-again); each is a record, and in no other count",
            "requests scheduled in the window",
        ),
    ]


def compute(run: Run) -> RequestCounts:
    return run.whole.requests


def show(summary: "Summary") -> Section:
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
    apart = Line(
        f"{plural(outside, 'request')} failed outside the window, for example in the warm-up: "
        "no figure has them"
    )
    is_bad = part.failed or part.lost or part.unsent or part.stuck
    counted = Line(text, Tone.WARN if is_bad else Tone.PLAIN)
    return Section("Requests", (counted, *([apart] if outside else []), *_given_up(part)))


def left_open(summary: "Summary") -> Section | None:
    """That the server did not end responses whose answers were over; None where it did."""
    n = summary.requests.left_open
    if not n:
        return None
    share = percent(n / summary.requests.population)
    text = (
        f"{plural(n, 'response')} ({share}) left open by the server after the answer's end: its user waited, "
        "and the connection was lost"
    )
    return Section("Left open", (Line(text, Tone.WARN),), key="left_open")


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


# --- What other users of the locustfile sent, such as an ``HttpUser``


_OTHER = "requests of other users, the whole run"


class OtherRequestsPart(SummaryPart, frozen=True):
    """Requests of one method and name that other users of the locustfile sent, such as an ``HttpUser``."""

    method: Annotated[str, key("as Locust's event has it; empty in the last row of more than 20", _OTHER)]
    name: Annotated[str, key("the same; `other names` in the last row of more than 20", _OTHER)]
    requests: Annotated[int, key("number of requests, failed ones included", _OTHER)]
    failures: Annotated[int, key("number of those whose event has an exception", _OTHER)]
    p50_ms: Annotated[
        float | None, key("median of the response times that Locust's events have, ms, to 1 %", _OTHER)
    ]
    p95_ms: Annotated[float | None, key("95th percentile of the same, ms, to 1 %", _OTHER)]


def compute_others(run: Run) -> list[OtherRequestsPart] | None:
    """What the workers counted of other users' requests, over the whole run; None without any."""
    if run.of_selection:
        return None
    return [
        OtherRequestsPart(
            method=each.method,
            name=each.name,
            requests=each.requests,
            failures=each.failures,
            p50_ms=each.percentile_ms(50),
            p95_ms=each.percentile_ms(95),
        )
        for each in together(each for worker in run.manifest.workers for each in worker.others)
    ] or None


def show_others(summary: "Summary") -> Section | None:
    """What other users of the locustfile sent, such as an ``HttpUser``; None without any."""
    found = summary.other_requests
    if not found:
        return None
    columns = (
        Column("Method", left=True, verbatim=True),
        Column("Name", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("failures"),
        Column("p50", over="time ms"),
        Column("p95", over="time ms"),
    )
    rows = tuple(
        TableRow(
            (
                short(clean(each.method), NAME_LENGTH),
                short_name(each.name),
                count(each.requests),
                count(each.failures),
                number(each.p50_ms),
                number(each.p95_ms),
            ),
            Tone.WARN if each.failures else Tone.PLAIN,
        )
        for each in found
    )
    note = Line(
        "of other users of the locustfile, the whole run: in no other figure, gate or limit", Tone.FAINT
    )
    return Section("Other requests", table=Table(columns, rows), notes=(note,))

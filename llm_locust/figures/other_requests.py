"""Other requests: what other users of the locustfile sent, such as an ``HttpUser``."""

from typing import TYPE_CHECKING, Annotated

from llm_locust.core.record import together
from llm_locust.figures.figure import Run
from llm_locust.figures.parts import shown_label as _shown
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import clean, count, number, short
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

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


_MESSAGE_LENGTH, _EXAMPLE_LENGTH, _NAME_LENGTH = 160, 2_000, 64


def compute(run: Run) -> list[OtherRequestsPart] | None:
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


def show(summary: "Summary") -> Section | None:
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
                short(clean(each.method), _NAME_LENGTH),
                _shown(each.name),
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

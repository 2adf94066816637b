"""Replicas that came and went, and how long they took after each step up of the load."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.deployment.replicas import Autoscaling, ReplicasUp, ScaleUp
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, count, number, percent, plural, seconds

#: Rows of the table, and changes that the line names.
MOST_ROWS, MOST_CHANGES = 20, 12

_COLUMNS = (
    Column("Autoscaling", left=True),
    Column("at"),
    Column("replicas"),
    Column("first new"),
    Column("last new"),
    Column("requests", over="until then", wide=True),
    Column("missed", over="until then", wide=True),
    Column("good lost"),
    Column("recovered"),
)

_UNITS = {"users": "users", "rate": "requests/s"}


def autoscaling(summary: Summary) -> Section | None:
    """None where the number of replicas did not change."""
    part = summary.autoscaling
    if part is None:
        return None
    rows = tuple(map(_row, part.steps[:MOST_ROWS]))
    return Section(
        "Autoscaling",
        lines=(Line(_over_time(part.replicas)),) if not rows else (),
        table=Table(_COLUMNS, rows) if rows else None,
        notes=tuple(_notes(part, summary.fairness.named_by)),
    )


def _over_time(changes: list[ReplicasUp]) -> str:
    shown = [f"{count(each.replicas)} from {seconds(each.at_s)}" for each in changes[:MOST_CHANGES]]
    more = len(changes) - MOST_CHANGES
    return "replicas: " + ", ".join(shown) + (f" and {plural(more, 'change')} more" if more > 0 else "")


def _row(step: ScaleUp) -> TableRow:
    load = f"{number(step.asked_before)} → {number(step.asked)} {_UNITS.get(step.kind, '')}".rstrip()
    came = f"{count(step.replicas_before)} + {count(step.new)}"
    cells = (
        *(load, seconds(step.at_s), came, seconds(step.first_new_s), seconds(step.last_new_s)),
        *(count(step.requests), _missed(step), _lost(step), _recovered(step)),
    )
    return TableRow(cells, Tone.PLAIN if step.new else Tone.WARN)


def _missed(step: ScaleUp) -> str:
    return f"{count(step.missed)} ({percent(step.missed / step.requests)})" if step.requests else UNDEFINED


def _lost(step: ScaleUp) -> str:
    return UNDEFINED if step.good_lost is None else count(step.good_lost)


def _recovered(step: ScaleUp) -> str:
    bound = step.recovered_at_least_s
    return seconds(step.recovered_s) if bound is None else f"≥ {seconds(bound)}"


def _notes(part: Autoscaling, named_by: str | None) -> Iterator[Line]:
    if part.steps:
        yield Line(_over_time(part.replicas))
    else:
        yield Line("the load had no step up, so there is no time to scale", Tone.FAINT)
    if idle := [step for step in part.steps[:MOST_ROWS] if not step.new]:
        yield Line(f"no new replica answered after {plural(len(idle), 'step')}", Tone.WARN)
    if len(part.steps) > MOST_ROWS:
        yield Line(f"{count(len(part.steps) - MOST_ROWS)} more steps in summary.json", Tone.FAINT)
    if part.unrecorded:
        missing = plural(part.unrecorded, "request")
        yield Line(f"{missing} have no record: good lost is a lower bound", Tone.WARN)
    if any(step.kind == "users" and step.good_lost is not None for step in part.steps):
        what = "good lost: against as many good requests per user and second as before the step"
        yield Line(what, Tone.FAINT)
    if part.unsure:
        late = plural(part.unsure, "replica")
        yield Line(f"{late} answered late and too rarely to tell whether it was there before", Tone.WARN)
    if part.steps and part.judged_by == "outcome":
        yield Line("no SLO: good requests are all that did not fail", Tone.FAINT)
    named = "address" if named_by == "peer" else "replica"
    yield Line(f"a {named} counts from its first answer to its last", Tone.FAINT)

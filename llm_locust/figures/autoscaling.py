"""Replicas that came and went while the load changed, and what their coming late cost."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.reliability import recovery
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
    seconds,
)
from llm_locust.metrics.columns import Columns, Floats, Mask, groups
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.steady_window import LoadOverTime, asked_load
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


# --- Replicas that came and went, and how long they took after each step up of the load


#: Rows of the table, and changes that the line names.
MOST_STEPS, MOST_CHANGES = 20, 12


_RUN = "the whole run"
_STEP = "a step up of the load"


class ReplicasUp(SummaryPart, frozen=True):
    """The number of replicas from a time on."""

    at_s: Annotated[float, key("a change, s after the run's start; the first entry is the start", _RUN)]
    replicas: Annotated[int, key("number of replicas from then on", _RUN)]


class ScaleUp(SummaryPart, frozen=True):
    """A step up of the load, and how long new replicas took."""

    at_s: Annotated[float, key("when the larger load began, s after the run's start", _STEP)]
    kind: Annotated[str, key("`users` or `rate`", _STEP)]
    asked_before: Annotated[float, key("load before, in users or requests/s", _STEP)]
    asked: Annotated[float, key("load from then on", _STEP)]
    replicas_before: Annotated[int, key("number of replicas at the step", _STEP)]
    new: Annotated[int, key("replicas that came between it and the next step up, or the end", _STEP)]
    first_new_s: Annotated[
        float | None, key("time to scale: the first answer of the first new one − the step, s", _STEP)
    ]
    last_new_s: Annotated[float | None, key("the same of the last new one, s", _STEP)]
    requests: Annotated[
        int,
        key("judged requests due between the step and `last_new_s`; without a new one up to the end", _STEP),
    ]
    missed: Annotated[int, key("those of them that were not good", "`requests`")]
    missed_share_before: Annotated[
        float | None, key("share of those not good in the stage before, without its warm-up", "judged")
    ]
    good_lost: Annotated[
        float | None,
        key(
            "rate: max(0, `missed` − `missed_share_before` × `requests`); users: against as many good "
            "requests per user and second as before",
            "`requests`",
        ),
    ]
    recovered_s: Annotated[
        float | None,
        key("time to recover, s; null where the share of good ones was not back, or too few tell it", _STEP),
    ]
    recovered_at_least_s: Annotated[
        float | None, key("a lower bound of it, where the share was not back by the step's end, s", _STEP)
    ] = None


class Autoscaling(SummaryPart, frozen=True):
    """Replicas over time, and what they took after each step up of the load."""

    replicas: list[ReplicasUp]
    steps: list[ScaleUp]
    unsure: Annotated[
        int, key("replicas that answered late, and too rarely to tell whether they were there before", _RUN)
    ]
    judged_by: Annotated[str, key("`slo`, or `outcome` without one: good is what did not fail", _RUN)]
    unrecorded: Annotated[int, key("lost and unsent requests; with some, `good_lost` is a lower bound", _RUN)]


#: A silence at an edge of the run is a replica's absence from here on, where at its own share of the answers
#: chance does not make it: no answer where 12 are expected happens once in 160,000 times.
LEAST_S = 5.0
EXPECTED_ANSWERS = 12.0

#: A load that begins later after the drain of the one before is no step of it.
MOST_PAUSE_S = 60.0

_NEVER_NS = 2**63


@dataclass(frozen=True, slots=True)
class Life:
    """When the replica of this name answered first and last, in seconds on the axis of the columns.

    ``came`` and ``left``: it was not there before, or after. ``unsure``: it answered late, and too rarely to
    tell whether it was there before.
    """

    name: str
    first_s: float
    last_s: float
    came: bool
    left: bool
    unsure: bool


def autoscaling(requests: Requests, m: Measured, manifest: Manifest, unrecorded: int) -> Autoscaling | None:
    """The ``autoscaling`` of a summary; None if the number of replicas did not change, or there are several
    runs.

    It is of all requests of the run, warm-up included.

    Args:
        requests: those of ``m``, which has their replicas' labels.
        unrecorded: requests of the run without a record.
    """
    found = lives(m.c)
    if not any(life.came or life.left for life in found) or (m.window.gaps and not manifest.is_sweep):
        return None
    judged = ~m.c.cancelled if m.judgement is None else m.judgement.judged
    good = m.c.ok if m.judgement is None else m.judgement.good
    users = None if manifest.open_loop else asked_load(requests, manifest, m.c.origin_ns)
    asked = _Asked(m.c.scheduled_s[judged], good[judged], users)
    return Autoscaling(
        replicas=list(_over_time(found, m.c.after_origin_s(manifest.started_ns))),
        steps=[_step(step, found, asked, m.c, manifest) for step in _steps(manifest)],
        unsure=sum(life.unsure for life in found),
        judged_by="outcome" if m.judgement is None else "slo",
        unrecorded=unrecorded,
    )


def lives(c: Columns) -> list[Life]:
    """The life of each replica that answered.

    An answer is from its first token to its last; one that is not streamed is its end. Failures without a
    token are none: a balancer or a loading server sends them too. Those whose clock was set on the way have
    no known times.

    A replica **came** if it was silent for more than :data:`LEAST_S` after the run's first answer, and had by
    its own share of the answers :data:`EXPECTED_ANSWERS` or more to expect in that time; it **left** by the
    same rule at the run's end. The share is of the answers between its first and its last: (own − 1) / (all
    − 1).
    """
    begins, ends = _answers(c)
    known = np.isfinite(begins) & (c.replica.codes >= 0)
    every = np.sort(begins[known])
    return [
        _life(name, begins[mine], ends[mine], every)
        for name, rows in groups(c.replica)
        if len(mine := rows[known[rows]])
    ]


def _answers(c: Columns) -> tuple[Floats, Floats]:
    """When each request's answer began and ended; NaN without one."""
    streamed = c.events > 0
    whole = np.where(c.ok & ~streamed, c.ended_s, np.nan)
    begins = np.where(streamed, c.sent_s + c.first_event_s, whole)
    ends = np.where(streamed, c.sent_s + c.last_event_s, whole)
    return np.where(c.stepped, np.nan, begins), np.where(c.stepped, np.nan, ends)


def _life(name: str, begins: Floats, ends: Floats, every: Floats) -> Life:
    first_s, last_s = float(begins.min()), float(begins.max())
    before = int(np.searchsorted(every, first_s, side="left"))
    after = len(every) - int(np.searchsorted(every, last_s, side="right"))
    meanwhile = len(every) - before - after
    share = (len(begins) - 1) / (meanwhile - 1) if meanwhile > 1 else 0.0
    is_late = first_s - every[0] > LEAST_S
    came = bool(is_late and before * share >= EXPECTED_ANSWERS)
    left = bool(every[-1] - last_s > LEAST_S and after * share >= EXPECTED_ANSWERS)
    return Life(name, first_s, float(ends.max()), came, left, bool(is_late and not came))


def _over_time(found: list[Life], start_s: float) -> Iterator[ReplicasUp]:
    """The number of replicas from the run's start on, and at each change."""
    came = [(life.first_s, 1) for life in found if life.came]
    left = [(life.last_s, -1) for life in found if life.left]
    up = len(found) - len(came)
    yield ReplicasUp(at_s=0.0, replicas=up)
    for at_s, change in sorted(came + left):
        up += change
        yield ReplicasUp(at_s=at_s - start_s, replicas=up)


@dataclass(frozen=True, slots=True)
class _Step:
    """The load of ``to`` follows the smaller one of ``before``; ``until_ns`` is the next such step, the next
    load after a pause, or the end of the load, None where it is unknown. ``loads`` are those up to then."""

    before: StageFacts
    to: StageFacts
    until_ns: int | None
    loads: Sequence[StageFacts]


def _steps(manifest: Manifest) -> Iterator[_Step]:
    stages = sorted(manifest.stages, key=lambda stage: stage.begun_ns)
    # What follows no load, as after the pause of a resumed run, or one of requests of other lengths, is no
    # step, and ends the one before it.
    edges = [
        (a, b) for a, b in pairwise(stages) if (a.kind == b.kind and b.asked > a.asked) or not _follows(a, b)
    ]
    ends_ns = [stages[-1].ended_ns, manifest.stopped_ns] if stages else []
    ended_ns = min((ns for ns in ends_ns if ns is not None), default=None)
    untils = [b.begun_ns for _, b in edges[1:]] + [ended_ns]
    for (before, to), until_ns in zip(edges, untils, strict=False):
        if _follows(before, to):
            first, ends = to.begun_ns, _NEVER_NS if until_ns is None else until_ns
            yield _Step(before, to, until_ns, [each for each in stages if first <= each.begun_ns < ends])


def _follows(before: StageFacts, to: StageFacts) -> bool:
    """Whether one load came right after the other, of requests of the same lengths: between the parts of a
    resumed run replicas may change."""
    ends_ns = [ns for ns in (before.drained_ns, before.ended_ns) if ns is not None]
    pause_ns = to.begun_ns - max(ends_ns, default=to.begun_ns)
    is_alike = before.lengths == to.lengths
    return is_alike and before.repeated_as is None and pause_ns <= MOST_PAUSE_S * 1e9


@dataclass(frozen=True, slots=True)
class _Asked:
    """When judged requests were due, and which were good; of a closed loop its users, if known."""

    due_s: Floats
    good: Mask
    users: LoadOverTime | None

    def share(self, from_s: float, to_s: float) -> Proportion:
        """Share of good ones among those due in [``from_s``, ``to_s``)."""
        inside = (self.due_s >= from_s) & (self.due_s < to_s)
        return Proportion(int(self.good[inside].sum()), int(inside.sum()))

    def until(self, to_s: float) -> "_Asked":
        inside = self.due_s < to_s
        return _Asked(self.due_s[inside], self.good[inside], self.users)

    def user_s(self, spans: Iterable[tuple[float, float]]) -> float:
        """Time that users spent in spans, together."""
        assert self.users is not None
        apart = [(start, end) for start, end in spans if end > start]
        return sum(float(self.users.levels(np.array(span))[0]) * (span[1] - span[0]) for span in apart)


def _step(step: _Step, found: list[Life], asked: _Asked, c: Columns, manifest: Manifest) -> ScaleUp:
    """See docs/definitions.md, "Autoscaling"."""
    at_s = c.after_origin_s(step.to.begun_ns)
    until_s = np.inf if step.until_ns is None else c.after_origin_s(step.until_ns)
    new = sorted(life.first_s for life in found if life.came and at_s < life.first_s <= until_s)
    up = sum(
        (not life.came or life.first_s <= at_s) and not (life.left and life.last_s < at_s) for life in found
    )
    quiet_ns = step.before.begun_ns if step.before.measured_ns is None else step.before.measured_ns
    quiet_s = c.after_origin_s(quiet_ns)
    before = asked.share(quiet_s, at_s)
    over_s = new[-1] if new else until_s
    meanwhile = asked.share(at_s, over_s)
    theirs = asked.until(until_s)
    recovered = recovery(theirs.due_s, theirs.good, before, at_s)
    return ScaleUp(
        at_s=(step.to.begun_ns - manifest.started_ns) * 1e-9,
        kind=step.to.kind,
        asked_before=step.before.asked,
        asked=step.to.asked,
        replicas_before=up,
        new=len(new),
        first_new_s=new[0] - at_s if new else None,
        last_new_s=new[-1] - at_s if new else None,
        requests=meanwhile.n,
        missed=meanwhile.n - meanwhile.hits,
        missed_share_before=None if before.ratio is None else 1 - before.ratio,
        good_lost=(
            _lost_of_rate(before, meanwhile)
            if step.to.kind == "rate"
            else _lost_of_users(step, asked, (quiet_s, at_s, over_s), c)
        ),
        recovered_s=recovered.seconds,
        recovered_at_least_s=recovered.at_least_s,
    )


def _lost_of_rate(before: Proportion, meanwhile: Proportion) -> float | None:
    """Good requests lost of those that were due, whatever the server did."""
    return None if before.ratio is None else max(0.0, before.ratio * meanwhile.n - meanwhile.hits)


def _lost_of_users(
    step: _Step, asked: _Asked, edges_s: tuple[float, float, float], c: Columns
) -> float | None:
    """Good requests that users did not get, who would have had as many each as before the step.

    Users who wait for a slow server ask for less, so that of the requests that they sent too few are lost.

    Args:
        edges_s: the measured part before the step, the step, and the last new replica.
    """
    quiet_s, at_s, over_s = edges_s
    end_s = at_s if step.before.ended_ns is None else min(at_s, c.after_origin_s(step.before.ended_ns))
    hits = asked.share(quiet_s, end_s).hits
    if asked.users is None or not hits:
        return None
    ends = [
        over_s if each.ended_ns is None else min(over_s, c.after_origin_s(each.ended_ns))
        for each in step.loads
    ]
    spans = [(c.after_origin_s(each.begun_ns), end) for each, end in zip(step.loads, ends, strict=True)]
    expected = hits / asked.user_s([(quiet_s, end_s)]) * asked.user_s(spans)
    return max(0.0, expected - sum(asked.share(*span).hits for span in spans))


_AUTOSCALING_COLUMNS = (
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


def show(summary: "Summary") -> Section | None:
    """None where the number of replicas did not change."""
    part = summary.autoscaling
    if part is None:
        return None
    rows = tuple(map(_autoscaling_row, part.steps[:MOST_STEPS]))
    return Section(
        "Autoscaling",
        lines=(Line(_changes(part.replicas)),) if not rows else (),
        table=Table(_AUTOSCALING_COLUMNS, rows) if rows else None,
        notes=tuple(_notes(part, summary.fairness.named_by)),
    )


def _changes(changes: list[ReplicasUp]) -> str:
    first = [f"{count(each.replicas)} from {seconds(each.at_s)}" for each in changes[:MOST_CHANGES]]
    more = len(changes) - MOST_CHANGES
    return "replicas: " + ", ".join(first) + (f" and {plural(more, 'change')} more" if more > 0 else "")


def _autoscaling_row(step: ScaleUp) -> TableRow:
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
        yield Line(_changes(part.replicas))
    else:
        yield Line("the load had no step up, so there is no time to scale", Tone.FAINT)
    if idle := [step for step in part.steps[:MOST_STEPS] if not step.new]:
        yield Line(f"no new replica answered after {plural(len(idle), 'step')}", Tone.WARN)
    if len(part.steps) > MOST_STEPS:
        yield Line(f"{count(len(part.steps) - MOST_STEPS)} more steps in summary.json", Tone.FAINT)
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

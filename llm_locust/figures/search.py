"""The next load to try, or the answer, from the stages so far: a pure function without a clock or a server.

First the load is doubled until a limit breaks (halved, where the first load breaks one), and never beyond
twice the lowest load that broke one. Then each stage goes to where the edge is most likely, inside the part
that the stages so far leave open; near the edge stages repeat its neighbourhood from both sides, because one
stage's share is uncertain. The search ends when the 95 % interval of the edge is within the precision asked
for, when the client is the limit, when stages give no results, or when no stages are left."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import convert

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.stages import finished
from llm_locust.figures import stages
from llm_locust.figures.edge import (
    GROWTH,
    Bounds,
    Edge,
    NextStage,
    SearchResult,
    find_edge,
    format_load,
    next_load,
    next_of_maximum,
    round_load,
)
from llm_locust.figures.figure import Run
from llm_locust.figures.objective import UNITS, Axis, Objective, Probe, Shown, parse_objective, probes
from llm_locust.figures.text import Column, Line, Section, Table, TableRow, Tone, clean, load, number, percent
from llm_locust.metrics.question import Question
from llm_locust.metrics.stats.intervals import FEWEST_BEYOND
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_STAGE = "the stage's measured part"
_SEARCH = "the stages that are results"


class LimitReading(SummaryPart, frozen=True):
    """What a stage shows about one limit."""

    gate: Annotated[str, key("the limit, as it was asked for", _STAGE)]
    required: Annotated[
        float,
        key(
            "the share of requests that must be within it, 0 .. 1; of a certified limit what its certificate "
            "needs of this many",
            _STAGE,
        ),
    ]
    share: Annotated[
        float,
        key("the share within it, of requests scheduled in it; failed, hung and lost ones are not", _STAGE),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (Wilson, of `n_effective`)", _STAGE)]
    n: Annotated[int, key("requests", _STAGE)]
    n_effective: Annotated[float, key("as many independent requests they are worth", _STAGE)]


class SearchStage(SummaryPart, frozen=True):
    """One stage of a search."""

    stage: Annotated[int | None, key("number of the stage", _STAGE)]
    load: Annotated[float, key("the load, in `unit`", _STAGE)]
    shows: Annotated[
        str | None,
        key(
            "`holds`, `broken` or `unresolved`, by the intervals of its shares (a certified limit holds by "
            "its certificate); null: it was not used",
            _STAGE,
        ),
    ]
    good_per_s: Annotated[
        float | None,
        key(
            "of `max-goodput`: good requests/s, of a rate the share of good ones × the rate asked for", _STAGE
        ),
    ]
    no_result: Annotated[str | None, key("why it is no reading", _STAGE)]
    client: Annotated[str | None, key("in what the client was the limit", _STAGE)]
    limits: Annotated[list[LimitReading], key("the readings, a limit each", _STAGE)]


class SearchAnswer(SummaryPart, frozen=True):
    """The highest load under which the limits hold."""

    load: Annotated[
        float | None,
        key(
            "the edge: where the isotonic fit of the share within a limit crosses what is required; of "
            "`max-goodput` the load tried with the most good requests/s; null: not known",
            _SEARCH,
        ),
    ]
    low: Annotated[float | None, key("lower end of its 95 % interval (bootstrap); `edge` in gates", _SEARCH)]
    high: Annotated[float | None, key("upper end", _SEARCH)]
    at_least: Annotated[
        float | None, key("a lower bound: the highest load shown to hold, where none breaks a limit", _SEARCH)
    ]
    at_most: Annotated[
        float | None, key("an upper bound: the lowest load tried, where all break a limit", _SEARCH)
    ]
    limit: Annotated[str | None, key("the limit that breaks first", _SEARCH)]
    good_per_s: Annotated[
        float | None,
        key("of `max-goodput`: good requests/s at `load`, or at `at_least`, of all stages there", _SEARCH),
    ]
    good_low: Annotated[float | None, key("lower end of their 95 % interval", _SEARCH)]
    good_high: Annotated[float | None, key("upper end", _SEARCH)]
    is_resolved: Annotated[bool, key("half the interval is within the precision", _SEARCH)]
    why: Annotated[str, key("why the search ended", _SEARCH)]


class SearchFacts(SummaryPart, frozen=True):
    """The search of a run (`--find`)."""

    objective: Annotated[str, key("what was looked for", "the run")]
    unit: Annotated[str, key("of loads: `requests/s` or `users`", "the run")]
    stages: list[SearchStage]
    answer: SearchAnswer


#: A stage is kept away from both ends of the open part by this share of it, in logarithms.
_INSIDE = 0.25


def next_step(objective: Objective, bounds: Bounds, probes: Sequence[Probe]) -> NextStage | SearchResult:
    """What to do after ``probes``, in the order in which they ran.

    A search over concurrency is in whole users.
    """
    if objective.is_maximum:
        return next_of_maximum(objective, bounds, probes)
    return _Search(objective, bounds, tuple(probes)).step()


def last_answer(objective: Objective, bounds: Bounds, probes: Sequence[Probe]) -> SearchResult:
    """The answer of ``probes``, one at least, where no further stage can be run."""
    step = next_step(objective, bounds, probes)
    if isinstance(step, SearchResult):
        return step
    ended = next_step(objective, replace(bounds, most_stages=len(probes)), probes)
    assert isinstance(ended, SearchResult)
    wanted = format_load(objective, step.load)
    return replace(ended, why=f"the run ended before the search did, which would go on with {wanted}")


@dataclass(frozen=True, slots=True)
class _Search:
    objective: Objective
    bounds: Bounds
    probes: tuple[Probe, ...]

    def step(self) -> NextStage | SearchResult:
        return next_load(self.objective, self.bounds, self.probes, self._wanted, self._ended)

    def _wanted(self) -> NextStage | SearchResult:
        """What would be next if neither the client nor the number of stages were a limit."""
        if not self._counted:
            # Only stages that the client limited: it is lower loads that show the server.
            return self._lower(min(probe.load for probe in self.probes))
        held, broken = self._held(), self._broken()
        if not broken:
            return self._higher(max(held))
        if not held:
            return self._lower(min(broken))
        edge = self._edge()
        if edge.is_told and edge.reach <= self.bounds.precision:
            return self._answer(edge, "the interval is as narrow as asked for", is_resolved=True)
        if self.objective.axis == "concurrency" and (last := self._last_that_holds()) is not None:
            return self._between_neighbours(last, edge)
        return NextStage(self._near(edge), "near the edge")

    def _higher(self, load: float) -> NextStage | SearchResult:
        if load >= self.bounds.most:
            return self._ended(f"{self._format_load(load)} is the most that may be tried")
        return NextStage(
            self._round_load(min(GROWTH * load, self.bounds.most)),
            f"all limits hold at {self._format_load(load)}",
        )

    def _lower(self, load: float) -> NextStage | SearchResult:
        if self.objective.axis == "concurrency" and load <= 1:
            return self._ended("a single user breaks a limit")
        why = "a limit is broken" if self._counted else "the client was the limit"
        return NextStage(self._round_load(load / GROWTH), f"{why} at {self._format_load(load)}")

    def _near(self, edge: Edge) -> float:
        """A load near the edge, inside what is open: on the side that fewer requests have shown."""
        low, high = max(self._held_below()), min(self._broken())
        precision = self.bounds.precision
        if high / low > (1 + precision) ** 3:
            width = math.log(high / low)
            first, last = low * math.exp(_INSIDE * width), high * math.exp(-_INSIDE * width)
            middle = edge.load if 0 < edge.load < math.inf else math.sqrt(low * high)
            return self._round_load(min(max(middle, first), last))
        if not 0 < edge.load < math.inf:
            return self._round_load(math.sqrt(low * high))
        below = sum(1 for probe in self._counted if edge.load * (1 - 2 * precision) <= probe.load < edge.load)
        above = sum(
            1 for probe in self._counted if edge.load <= probe.load <= edge.load * (1 + 2 * precision)
        )
        side = -1 if below <= above else 1
        wanted = edge.load * (1 + side * precision / 2)
        return self._round_load(min(wanted, GROWTH * min(self._broken())))

    def _last_that_holds(self) -> float | None:
        """The number of users that is shown to hold where one more is shown to break; None if none is."""
        verdicts = {probe.load: probe.shows(self._required) for probe in self._counted}
        return next(
            (
                load
                for load, seen in verdicts.items()
                if seen == Shown.HOLDS and verdicts.get(load + 1) == Shown.BROKEN
            ),
            None,
        )

    def _between_neighbours(self, last: float, edge: Edge) -> SearchResult:
        """The answer where the intervals of two successive numbers of users show both sides of the edge."""
        why = "one user more breaks a limit"
        if edge.is_told:
            return self._answer(edge, why, is_resolved=True)
        limit = self.objective.limits[edge.limit].text
        return SearchResult(why, load=last, low=last, high=last, limit=limit, is_resolved=True)

    @property
    def _required(self) -> tuple[float, ...]:
        return tuple(limit.required for limit in self.objective.limits)

    @property
    def _counted(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.counts]

    def _held(self) -> list[float]:
        """Loads whose shares are as required, by what was counted alone."""
        return [probe.load for probe in self._counted if self._is_within(probe)]

    def _broken(self) -> list[float]:
        return [probe.load for probe in self._counted if not self._is_within(probe)]

    def _held_below(self) -> list[float]:
        lowest = min(self._broken())
        return [load for load in self._held() if load < lowest] or [lowest / GROWTH]

    def _is_within(self, probe: Probe) -> bool:
        return not probe.breaks(self._required)

    def _edge(self) -> Edge:
        return find_edge(self._counted, self._required, self.bounds.seed)

    def _ended(self, why: str) -> SearchResult:
        """What the stages show where the search cannot go on."""
        return self._answer(self._edge(), why) if self._counted else SearchResult(why)

    def _answer(self, edge: Edge, why: str, *, is_resolved: bool = False) -> SearchResult:
        if math.isinf(edge.load):
            return SearchResult(why, at_least=self._whole(self._shown_to_hold()))
        limit = self.objective.limits[edge.limit].text
        if not edge.load:
            return SearchResult(why, at_most=min(probe.load for probe in self._counted), limit=limit)
        if not edge.is_told:
            return SearchResult(f"{why}; {self._too_few(edge)}", load=self._whole(edge.load), limit=limit)
        return SearchResult(
            why,
            load=self._whole(edge.load),
            low=self._whole(edge.low) if edge.low else None,
            high=self._whole(edge.high) if math.isfinite(edge.high) else None,
            limit=limit,
            is_resolved=is_resolved,
        )

    def _too_few(self, edge: Edge) -> str:
        tail = 1 - self._required[edge.limit]
        return (
            f"the stages near the edge are worth {edge.beyond / tail:.0f} independent requests, and "
            f"{self.objective.limits[edge.limit].text} needs {FEWEST_BEYOND / tail:.0f}: make stages longer"
        )

    def _shown_to_hold(self) -> float | None:
        """The highest load at which the intervals of all shares are as required; None without one."""
        return max((p.load for p in self._counted if p.shows(self._required) == "holds"), default=None)

    def _round_load(self, load: float) -> float:
        return round_load(self.objective, load)

    def _whole(self, load: float | None) -> float | None:
        """Whole users below an edge: the next one breaks it."""
        return float(math.floor(load)) if load is not None and self.objective.axis == "concurrency" else load

    def _format_load(self, load: float) -> str:
        return format_load(self.objective, load)


# --- The search of a run: what it looked for, and what its stages show of it


#: Kind of the stages of each axis.
KINDS: dict[Axis, Any] = {"rate": "rate", "concurrency": "users"}

DEFAULT_FIRST_LOAD, DEFAULT_PRECISION, DEFAULT_MOST_STAGES = 4.0, 0.05, 12


def parse_share(text: str) -> float:
    """A share above 0 and below 1, as ``5%`` or ``0.05`` (raises ValueError)."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ValueError(f'"{text}" is not a share: write it as 5% or 0.05')
    return value


def parse_first_load(text: str) -> float:
    """A number above 0 (raises ValueError)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is not a load: give a number above 0")
    return value


def bounds_of(
    objective: Objective,
    *,
    first_load: float | None,
    precision: float | None,
    max_stages: int | None,
    most: float = math.inf,
) -> Bounds:
    """The bounds of a search; None is the default.

    Raises:
        ValueError: one is out of its range.
    """
    start = DEFAULT_FIRST_LOAD if first_load is None else first_load
    if objective.axis == "concurrency" and not start.is_integer():
        raise ValueError(f"--first-load {start:g}: concurrency is a whole number of users")
    return Bounds(
        start,
        most=most,
        precision=precision or DEFAULT_PRECISION,
        most_stages=max_stages or DEFAULT_MOST_STAGES,
    )


def search_of(manifest: Manifest) -> tuple[Objective, Bounds] | None:
    """The objective and the bounds of the run's search, by its options; None in another run.

    Raises:
        ValueError: the manifest has an option that cannot be read.
    """
    options = manifest.options
    if not (text := options.get("find")):
        return None
    objective = parse_objective(str(text))
    found = bounds_of(
        objective,
        first_load=_parsed(parse_first_load, options.get("first_load")),
        precision=_parsed(parse_share, options.get("precision")),
        max_stages=_parsed(int, options.get("max_stages")),
    )
    return objective, replace(found, seed=manifest.seed)


def compute(run: Run) -> SearchFacts | None:
    return search(run.requests, run.manifest, run.question) if run.figure(stages.compute) else None


def search(requests: Requests, manifest: Manifest, question: Question) -> SearchFacts | None:
    """The ``search`` of a summary, from the records of its stages; None in a run without a search.

    Options that cannot be read, as another version wrote them, leave the rest of the summary as it is.
    """
    try:
        asked = search_of(manifest)
    except ValueError as e:
        return _unread(manifest, str(e))
    if asked is None:
        return None
    objective, bounds = asked
    found = probes(requests, manifest, question, objective) if manifest.stages else []
    step = last_answer(objective, bounds, found) if found else SearchResult("no stage has begun")
    numbers = [each.number for each in finished(manifest.stages) if each.kind == KINDS[objective.axis]]
    return SearchFacts(
        objective=objective.text,
        unit=UNITS[objective.axis],
        stages=search_stages(objective, found, numbers),
        answer=search_answer(step),
    )


def _unread(manifest: Manifest, why: str) -> SearchFacts:
    """A search that this version cannot read: its words, and no answer."""
    kinds = {KINDS[axis]: UNITS[axis] for axis in UNITS}
    unit = next((kinds[stage.kind] for stage in manifest.stages), UNITS["rate"])
    answer = search_answer(SearchResult(f"this version cannot read what was asked for: {why}"))
    return SearchFacts(objective=str(manifest.options["find"]), unit=unit, stages=[], answer=answer)


def search_answer(found: SearchResult) -> SearchAnswer:
    return convert(found, SearchAnswer, from_attributes=True)


def search_stages(
    objective: Objective, found: Sequence[Probe], numbers: Sequence[int | None]
) -> list[SearchStage]:
    """What each probe shows; ``numbers`` are those of the stages in their run."""
    required = tuple(limit.required for limit in objective.limits)
    return [
        SearchStage(
            stage=number,
            load=probe.load,
            shows=str(probe.shows(required)) if probe.counts and not objective.is_maximum else None,
            good_per_s=None if probe.good is None or not objective.is_maximum else probe.good.value,
            no_result=probe.no_result or None,
            client=probe.client or None,
            limits=[
                LimitReading(
                    gate=limit.text,
                    required=limit.required if r.certified is None else r.certified,
                    share=r.share,
                    ci95=list(r.ends),
                    n=r.n,
                    n_effective=r.n_eff,
                )
                for limit, r in zip(objective.limits, probe.readings, strict=False)
            ],
        )
        for probe, number in zip(found, numbers, strict=True)
    ]


def _parsed(parse: Any, value: Any) -> Any:
    return None if value in (None, "") else parse(str(value))


# --- The search of a run: what each stage shows of the limits, and the answer


def show(summary: "Summary") -> Iterator[Section]:
    """The answer, and the stages that it rests on; nothing in a run without a search."""
    found = summary.search
    if found is None:
        return
    yield answer(found.unit, found.answer, title=f"Search: {clean(found.objective)}")
    if found.stages:
        yield readings("Readings of the search", found.unit, found.stages, key="readings")


def answer(unit: str, found: SearchAnswer, title: str = "Answer") -> Section:
    """The edge with its interval, or the bound that is known of it, and why the search ended."""
    tone = Tone.GOOD if found.is_resolved else Tone.WARN
    first, *others = _answer(unit, found)
    return Section(title, (Line(first, tone), *(Line(text) for text in others)), stacked=True)


def _answer(unit: str, found: SearchAnswer) -> Iterator[str]:
    if found.good_per_s is not None:
        yield _most_good(unit, found)
    elif found.load is not None and found.low is not None and found.high is not None:
        yield f"{load(found.load)} {unit} ({number(found.low)} to {number(found.high)}, 95 % interval)"
    elif found.load is not None:
        open_end = "" if found.low in (None, found.load) else f", at least {load(found.low)}"
        yield f"about {load(found.load)} {unit}{open_end}, without an interval"
    elif found.at_least is not None:
        yield f"at least {load(found.at_least)} {unit}: a lower bound, no load tried breaks a limit"
    elif found.at_most is not None:
        yield f"less than {load(found.at_most)} {unit}: an upper bound, every load tried breaks a limit"
    else:
        yield "none: the stages do not show at which load the limits hold"
    if found.limit is not None:
        yield f"{clean(found.limit)} breaks first"
    yield f"the search ended: {clean(found.why)}"


def _most_good(unit: str, found: SearchAnswer) -> str:
    """The load with the most good requests/s, or that it is higher than all that were tried."""
    low, high = ("no end" if end is None else number(end) for end in (found.good_low, found.good_high))
    good = f"{number(found.good_per_s)} good requests/s ({low} to {high}, 95 % interval)"
    if found.load is None:
        return f"at least {good} at {number(found.at_least)} {unit}: a lower bound, no higher load has fewer"
    lowest, highest = ("no end" if end is None else number(end) for end in (found.low, found.high))
    return f"{good} at {number(found.load)} {unit}; the best load is between {lowest} and {highest}"


def readings(title: str, unit: str, stages: Sequence[SearchStage], key: str = "") -> Section:
    """A row for each stage: its load, the share within each limit, and what that shows."""
    gates = list(dict.fromkeys(reading.gate for stage in stages for reading in stage.limits))
    columns = (
        Column(unit),
        *(Column("share", over=gate) for gate in gates),
        Column("requests"),
        Column("independent"),
        Column("good/s"),
        Column("shows", left=True, wraps=True, verbatim=True),
    )
    table = Table(columns, tuple(_row(stage, len(gates)) for stage in stages)).without_empty()
    return Section(title, table=table, notes=tuple(_unused(unit, stages)), stacked=True, key=key)


def _unused(unit: str, stages: Sequence[SearchStage]) -> Iterator[Line]:
    """Why readings were not used, each reason once with its loads."""
    loads: dict[str, list[str]] = {}
    for stage in stages:
        why = stage.no_result or (f"the client was the limit: {stage.client}" if stage.client else "")
        if why:
            loads.setdefault(clean(why), []).append(load(stage.load))
    for why, theirs in loads.items():
        yield Line(f"{', '.join(dict.fromkeys(theirs))} {unit}: {why}", Tone.WARN)


def _row(stage: SearchStage, limits: int) -> TableRow:
    if not stage.limits:
        return TableRow((load(stage.load), *("",) * (limits + 3), "no result"), Tone.WARN)
    shares = (f"{percent(r.share)} ({percent(r.ci95[0])} to {percent(r.ci95[1])})" for r in stage.limits)
    unused = "no result" if stage.no_result else "client-limited" if stage.client else ""
    cells = (
        load(stage.load),
        *shares,
        f"{max(r.n for r in stage.limits):,}",
        number(min(r.n_effective for r in stage.limits)),
        "" if stage.good_per_s is None else number(stage.good_per_s),
        unused or clean(stage.shows or ""),
    )
    return TableRow(cells, Tone.WARN if unused else Tone.PLAIN)

"""The search of a run: what each stage shows of the limits, and the answer."""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.summary_types.search import SearchAnswer, SearchStage
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import clean, load, number, percent


def search(summary: Summary) -> Iterator[Section]:
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
        open_end = "" if found.low is None else f", at least {load(found.low)}"
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

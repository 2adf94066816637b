"""Several loads side by side: the curve, the search, repeats, prefix-cache hits, spikes."""

from collections.abc import Iterator, Sequence

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    clean,
    count,
    estimate,
    is_cut,
    load,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
)
from llm_locust.metrics.curves.curve import COLLAPSE
from llm_locust.metrics.summary_types.search import (
    CurveFacts,
    KneeSummary,
    Overload,
    PrefixWorth,
    SearchAnswer,
    SearchStage,
    Spike,
    SpikeFacts,
    SpikePart,
    SpikeRecovery,
    StagePrefix,
    UslFigures,
    UslParameter,
)
from llm_locust.metrics.summary_types.stages import OverRepeats, Repeats, Stage
from llm_locust.report.sections.groups import result_of, stage_label

# --------------------
# What the stages of a sweep show together: the knee, the law of the throughput, overload.
# --------------------


def curve(summary: Summary) -> Iterator[Section]:
    """A line for each, or why there is none, of each pair of lengths; nothing of a run without loads."""
    unit = "users" if any(stage.kind == "users" for stage in summary.stages or ()) else "requests/s"
    if summary.curve is not None:
        yield _section("Over the loads", summary.curve, unit)
    for each in summary.curves or ():
        yield _section(f"Over the loads, {clean(each.lengths)} tokens", each.curve, unit)


def _section(title: str, found: CurveFacts, unit: str) -> Section:
    left_out = f"; {plural(found.left_out, 'stage')} without a result left out" if found.left_out else ""
    return Section(
        title,
        tuple(_lines(found, unit)),
        notes=(Line(f"over {plural(found.loads, 'load')}{left_out}", Tone.FAINT),),
        stacked=True,
    )


def _lines(found: CurveFacts, unit: str) -> Iterator[Line]:
    yield from ([_missing("no knee", found, "knee")] if found.knee is None else _knee(found.knee, unit))
    yield from ([_missing("throughput fits no law", found, "usl")] if found.usl is None else _usl(found.usl))
    yield (
        _missing("overload not seen", found, "overload")
        if found.overload is None
        else _overload(found.overload, unit)
    )


def _missing(what: str, found: CurveFacts, name: str) -> Line:
    return Line(f"{what}: {clean(found.missing.get(name, ''))}", Tone.FAINT)


def _knee(knee: KneeSummary, unit: str) -> Iterator[Line]:
    ends = _ends(knee.ci95)
    yield Line(
        f"knee at {number(knee.load)} {unit} ({ends}): up to there the median E2EL grows little, to "
        f"{number(knee.latency_ms)} ms"
    )


def _usl(usl: UslFigures) -> Iterator[Line]:
    yield Line(
        f"throughput: contention {_share(usl.alpha)}, coherency {_share(usl.beta)} a pair "
        f"(universal scalability law, off by {percent(usl.residual)})"
    )
    if usl.plateau.value is None:
        yield Line("it shows no plateau yet: throughput grows with the load as far as it was measured")
        return
    falls = usl.peak.value is not None
    beyond = falls and usl.measured_to is not None and (usl.peak.value or 0) > usl.measured_to
    where = f"the peak at {_value(usl.peak)} in flight" if falls else "what it approaches"
    text = f"plateau {_value(usl.plateau)} requests/s: {where}"
    if beyond or not falls:
        text += f"; a model beyond {number(usl.measured_to)} in flight, the most that was measured"
    yield Line(text)


def _overload(part: Overload, unit: str) -> Line:
    beside = (
        f"{number(part.good_per_s)} good requests/s at {number(part.load)} {unit}, {percent(part.kept)} of "
        f"the {number(part.best_good_per_s)} at {number(part.best_load)} ({_over_repeats(part)})"
    )
    if part.collapses:
        return Line(f"goodput collapses beyond its best load: {beside}", Tone.WARN)
    return Line(f"goodput holds beyond its best load: {beside}")


def _over_repeats(part: Overload) -> str:
    low, high = part.ci95 or (None, None)
    if low is None or high is None:
        return f"{plural(part.repeats, 'repeat')}: no interval"
    unsure = ", so neither is sure" if low < COLLAPSE <= high else ""
    return f"{percent(low)} to {percent(high)} over {plural(part.repeats, 'repeat')}{unsure}"


def _value(found: UslParameter) -> str:
    return f"{number(found.value)} ({_ends(found.ci95)})"


def _share(found: UslParameter) -> str:
    low, high = (percent(end) for end in found.ci95)
    return f"{percent(found.value)} ({low} to {high})"


def _ends(ends: Sequence[float | None]) -> str:
    low, high = ("no end" if end is None else number(end) for end in ends)
    return f"{low} to {high}"


# --------------------
# The search of a run: what each stage shows of the limits, and the answer.
# --------------------


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


# --------------------
# Figures of each load over its repeats.
# --------------------


#: Figures of the table, and their heads; shares are shown in per cent.
_COLUMNS = {
    "ttft_p50_ms": Column("p50", over="TTFT ms"),
    "ttft_p99_ms": Column("p99", over="TTFT ms"),
    "tpot_p50_ms": Column("p50", over="TPOT ms", wide=True),
    "output_tokens_per_s": Column("tokens/s", over="output"),
    "inputs_per_s": Column("inputs/s"),
    "goodput": Column("goodput"),
}
_SHARES = ("goodput",)
_OF_SOME_RUNS = ("inputs_per_s",)
_UNITS = {"users": "users", "rate": "requests/s"}


def repeats(summary: Summary) -> Section | None:
    """Mean and 95 % interval of the repeats of each load; None where no load was repeated."""
    found = summary.repeats
    if not found:
        return None
    kinds = " or ".join(dict.fromkeys(_UNITS[load.kind] for load in found))
    columns = (
        Column(kinds, left=True),
        Column("lengths", left=True),
        Column("results"),
        *_COLUMNS.values(),
    )
    table = Table(columns, tuple(map(_repeats_row, found))).without_empty()
    note = Line("mean ± half its 95 % interval over the repeats, with what differs between them", Tone.FAINT)
    return Section("Repeats", table=table, notes=(note,))


def _repeats_row(repeated: Repeats) -> TableRow:
    cells = (_cell(repeated.figures.get(name), name) for name in _COLUMNS)
    tone = Tone.PLAIN if repeated.results == len(repeated.stages) else Tone.WARN
    results = f"{repeated.results} of {len(repeated.stages)}"
    return TableRow((load(repeated.asked), repeated.pair, results, *cells), tone)


def _cell(over: OverRepeats | None, name: str) -> str:
    if over is None or over.mean is None:
        return UNDEFINED if name not in _OF_SOME_RUNS else ""
    shown = percent if name in _SHARES else number
    if over.ci95 is None or over.ci95[1] is None:
        return shown(over.mean)
    return f"{shown(over.mean)} ± {shown(over.ci95[1] - over.mean)}"


# --------------------
# Prefix-cache hits of the stages of an experiment, and what they are worth.
# --------------------


_PREFIX_COLUMNS = (
    Column("Stage", left=True),
    Column("asked", over="prefix-cache hits"),
    Column("possible", over="prefix-cache hits"),
    Column("achieved", over="prefix-cache hits"),
    Column("by", left=True),
    Column("p50", over="TTFT ms"),
    Column("p99", over="TTFT ms"),
    Column("shared tokens", wide=True),
    Column("primed", wide=True),
    Column("result", left=True),
)


def prefix_hits(summary: Summary) -> Section | None:
    """A row for each stage; None of a sweep that sets no share."""
    found = [(stage, stage.prefix) for stage in summary.stages or () if stage.prefix is not None]
    if not found:
        return None
    table = Table(_PREFIX_COLUMNS, tuple(_prefix_row(stage, prefix) for stage, prefix in found))
    first = found[0][1]
    replicas = plural(max(prefix.replicas for _, prefix in found), "replica")
    sent = plural(first.prefixes, "shared prefix", "shared prefixes")
    note = f"of prompts of {count(first.input_tokens)} tokens"
    if any(prefix.primed for _, prefix in found):
        note += f"; before each stage the caches of {replicas} were flushed, and {sent} sent to each"
    lines = () if summary.prefix_cache is None else tuple(_worth(summary.prefix_cache))
    notes = (Line(note, Tone.FAINT), *meaning_in(table))
    return Section("Prefix cache", lines, table=table, notes=notes, key="prefix_cache", stacked=True)


def _prefix_row(stage: Stage, prefix: StagePrefix) -> TableRow:
    part, times = stage.figures, (UNDEFINED, UNDEFINED)
    if part is not None:
        cut = is_cut(part.requests.cut_share)
        times = (
            estimate(part.latency_ms["ttft"], "p50", cut=cut),
            estimate(part.latency_ms["ttft"], "p99", cut=cut),
        )
    cells = (
        stage_label(stage.number, stage.repeat),
        percent(prefix.asked),
        percent(prefix.possible),
        percent(prefix.achieved),
        prefix.source or UNDEFINED,
        *times,
        count(prefix.tokens),
        count(prefix.primed),
        result_of(stage),
    )
    return TableRow(cells, Tone.PLAIN if stage.is_result else Tone.WARN)


def _worth(found: PrefixWorth) -> Iterator[Line]:
    slope, ends = found.ttft_ms_per_10_points, found.ci95
    if slope is None or ends is None or None in ends:
        yield Line(f"no slope of the TTFT: {found.missing}", Tone.FAINT)
        return
    yield Line(
        f"10 points more of hits change the median TTFT by {number(slope)} ms ({number(ends[0])} to "
        f"{number(ends[1])}): {number(found.ttft_ms_per_1k_tokens)} ms for 1,000 computed prompt tokens"
    )
    if found.is_line is False:
        yield Line("but it does not follow a line: a median is over 3 standard errors off", Tone.WARN)


# --------------------
# Spikes of the load: what they cost, and how long it took until all was as before.
# --------------------


#: Spikes that are shown; summary.json has all.
MOST = 10

_NAMES = {"ttft": "TTFT", "e2el": "E2EL"}


def spikes(summary: Summary) -> Iterator[Section]:
    """A table of the parts of each spike, with the time to recover; nothing in a run without one."""
    found = summary.spike
    if found is None:
        return
    for i, each in enumerate(found.spikes[:MOST]):
        yield _spike_section(found, each, key=f"spike{i}" if i else "")


def _spike_section(found: SpikeFacts, each: Spike, key: str) -> Section:
    name = _NAMES.get(found.latency, clean(found.latency))
    over = f"{name} ms"
    columns = (
        *(Column("Spike", left=True), Column("requests"), Column("missed"), Column("good")),
        *(Column("p50", over=over), Column("p99", over=over)),
    )
    rows = (
        _spike_row(f"before, {number(each.base)} requests/s", each.before),
        _spike_row(f"peak, {number(each.peak)} for {seconds(each.seconds)}", each.during),
        _spike_row("until all was back", each.recovering),
        _spike_row("after that", each.after),
    )
    return Section(
        f"Spike at {seconds(each.at_s)}",
        tuple(_spike_lines(found, each, name)),
        Table(columns, rows),
        tuple(_notes(found, each)),
        stacked=True,
        key=key,
    )


def _spike_row(name: str, part: SpikePart) -> TableRow:
    shown = (number(part.p50_ms), number(part.p99_ms))
    return TableRow((name, count(part.requests), count(part.missed), percent(part.good), *shown))


def _spike_lines(found: SpikeFacts, each: Spike, name: str) -> Iterator[Line]:
    if each.good.why is not None and each.good.why == each.latency.why:
        yield Line(f"no time to recover: {clean(each.good.why)}", Tone.WARN)
        return
    what = "the share of good requests" if found.judged_by == "slo" else "the share of requests that succeed"
    yield _line(what, each.good)
    limit = "" if each.latency_limit_ms is None else f" ({number(each.latency_limit_ms)} ms, its p95 before)"
    yield _line(f"{name} from scheduled{limit}", each.latency)


def _line(what: str, found: SpikeRecovery) -> Line:
    if found.recovered_s == 0:
        return Line(f"{what} never fell after the peak", Tone.GOOD)
    if found.recovered_s is not None:
        return Line(f"{what} was back {seconds(found.recovered_s)} after the peak")
    if found.at_least_s is not None:
        return Line(
            f"{what} was NOT back by the end of the load: it takes at least {seconds(found.at_least_s)}, a "
            "lower bound",
            Tone.BAD,
        )
    return Line(f"{what}: no time to recover: {clean(found.why or UNDEFINED)}", Tone.WARN)


def _notes(found: SpikeFacts, each: Spike) -> Iterator[Line]:
    both = each.during.requests + each.recovering.requests
    yield Line(
        f"{count(each.missed)} of {count(both)} requests missed from the peak's begin until all was back"
    )
    if found.judged_by == "outcome":
        yield Line("no SLO: good requests are all that did not fail", Tone.FAINT)
    if found.unrecorded:
        missing = plural(found.unrecorded, "request")
        yield Line(f"{missing} without a record: missed is a lower bound, and so is the time", Tone.WARN)
    if (more := len(found.spikes) - MOST) > 0 and each is found.spikes[MOST - 1]:
        yield Line(f"{plural(more, 'spike')} more in summary.json", Tone.FAINT)

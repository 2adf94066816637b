"""What the stages of a sweep show together: the knee, the law of the throughput, overload."""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.curves.curve import COLLAPSE
from llm_locust.metrics.summary_types.search import (
    CurveFacts,
    KneeSummary,
    Overload,
    UslFigures,
    UslParameter,
)
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, number, percent, plural


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

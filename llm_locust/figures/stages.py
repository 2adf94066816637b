"""The ``stages`` of a summary: the figures of each stage, as a run of its own would have them."""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.texts import UNDEFINED, quantity
from llm_locust.figures.agents import agents
from llm_locust.figures.client import ClientFacts, ClientVerdict, client_validity
from llm_locust.figures.client_rules import Scale
from llm_locust.figures.figure import Run
from llm_locust.figures.goodput import limits
from llm_locust.figures.parts import (
    LATENCY_COLUMNS,
    RATE_COLUMNS,
    PartFigures,
    having_figures,
    part_of_all,
    rate_cells,
)
from llm_locust.figures.prefix_cache import PrefixHits, StagePrefix
from llm_locust.figures.stage_lengths import LengthsSeen, StageLengths
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
    is_cut,
    load,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
)
from llm_locust.figures.user_time import UserTime, user_time
from llm_locust.metrics.catalogue import View, e2el, shown_in, ttft
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.select import Selected
from llm_locust.metrics.stage_course import (
    FEWEST_FOR_LATENCIES,
    StageCourse,
    is_enough,
    look_at,
    parse_until,
    saturation,
    unsteady,
)
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile
from llm_locust.metrics.stats.intervals import CONFIDENCE, rounded
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.steady_window import asked_load
from llm_locust.metrics.structs import Interval, SummaryPart, key
from llm_locust.metrics.window import Window, iso, stage_window, sweep_window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_STAGE = "the stage"
_MEASURED = "the stage's measured part"
_LOAD = "the load"
_OUTSIDE = "the run without the measured parts of its stages"
_REPEATS = "the load's stages that are results"


class StageWindow(SummaryPart, frozen=True):
    """The measured part of a stage."""

    start: Annotated[str, key("end of ramp and warm-up, ISO 8601, UTC", _STAGE)]
    end: Annotated[str, key("end of the load, ISO 8601, UTC; outside, as the drain is", _STAGE)]
    start_s: Annotated[float, key("the same start, s after the start of the run", _STAGE)]
    seconds: Annotated[float, key("length, s: the denominator of the stage's rates", _STAGE)]


class StageUntil(SummaryPart, frozen=True):
    """The figure whose interval ends a stage."""

    asked: Annotated[str, key("the figure and its precision, as `p99_ttft±5%`", _MEASURED)]
    value_ms: Annotated[float | None, key("the figure, ms; null without an ok request", _MEASURED)]
    interval_ms: Annotated[
        Interval,
        key(
            "its interval by all requests of the stage, at the confidence of one look: the stage's looks "
            "together hold the truth with 95 %; null where the data cannot tell",
            _MEASURED,
        ),
    ]
    half: Annotated[float | None, key("half of that interval, as a share of the figure", _MEASURED)]
    is_early: Annotated[bool, key("whether it ended the stage before its time", _STAGE)]
    is_reached: Annotated[bool, key("whether `half` is within the precision", _MEASURED)]


class Stage(SummaryPart, frozen=True):
    """One stage of a run."""

    number: Annotated[int, key("number of the stage, from 0: the column `stage` of its requests", _STAGE)]
    kind: Annotated[
        Literal["users", "rate"], key("unit of the load: `users`, or `rate` (requests/s)", _STAGE)
    ]
    asked: Annotated[float, key("the load that was asked for, in that unit", _STAGE)]
    offered: Annotated[
        float | None,
        key(
            "the load that there was: mean number of users that had a request or waited for their next one, "
            "or requests scheduled / seconds",
            _MEASURED,
        ),
    ]
    repeat: Annotated[int, key("which repetition of this load, from 0", _STAGE)]
    lengths: StageLengths | None
    repeated_as: Annotated[
        int | None,
        key(
            "number of the stage that a resumed sweep has instead of it, because it was under way when the "
            "run ended; null of all others",
            _STAGE,
        ),
    ]
    window: StageWindow | None
    is_result: Annotated[bool, key("nothing in `reasons`", _STAGE)]
    steady: Annotated[
        bool | None,
        key(
            "whether latencies, answers made and requests in flight stayed the same but for chance; "
            "null for fewer than 100 requests, unless they show that it was not",
            _MEASURED,
        ),
    ]
    all_failed: Annotated[
        bool,
        key(
            "requests failed and none succeeded, in all of its time and by a valid client: its goodput is 0, "
            "for a search it breaks every limit, and it counts for `curve.overload` and the rates of "
            "`repeats`",
            _MEASURED,
        ),
    ]
    saturated: Annotated[
        bool | None,
        key("whether requests were due faster than they ended; null in a closed loop", _MEASURED),
    ]
    client: Annotated[
        ClientVerdict | None,
        key("verdict on the client; an invalid one was the limit, not the server", _MEASURED),
    ]
    reasons: Annotated[list[str], key("why its figures are not a result; empty where they are", _STAGE)]
    notes: Annotated[list[str], key("what else should be known of its figures", _STAGE)]
    until: Annotated[
        StageUntil | None, key("what ends it, with `--until`; null without, and where nothing was measured")
    ]
    figures: Annotated[
        PartFigures | None,
        key(
            "`requests`, `latency_ms`, `latency_ms_adjusted`, `throughput`, `goodput` and, of a run over "
            "trajectories, `agents` as in the summary; null without a measured part",
            _MEASURED,
        ),
    ]
    prefix: StagePrefix | None = None

    @property
    def pair(self) -> str:
        """What its sweep sets of its prompts: lengths as ``128:32``, or a share as ``50%``; empty without."""
        if self.prefix is not None:
            return f"{self.prefix.asked * 100:.6g}% shared"
        return "" if self.lengths is None else str(self.lengths)


class OutsideStages(SummaryPart, frozen=True):
    """Requests of a sweep in no stage's measured part: those of ramps, warm-ups and drains."""

    requests: Annotated[int, key("requests scheduled there", _OUTSIDE)]
    failed: Annotated[int, key("how many of them failed; they are in no figure of a stage", _OUTSIDE)]


class OverRepeats(SummaryPart, frozen=True):
    """A figure over the repeats of a load."""

    n: Annotated[int, key("repeats in which it is defined", _REPEATS)]
    mean: Annotated[float | None, key("mean of the repeats' figures", _REPEATS)]
    min: Annotated[float | None, key("the least", _REPEATS)]
    max: Annotated[float | None, key("the largest", _REPEATS)]
    ci95: Annotated[
        Interval, key("95 % interval of the mean, mean ± t s / √n; null for fewer than 2", _REPEATS)
    ]


class Repeats(SummaryPart, frozen=True):
    """One load that was measured more than once."""

    kind: Annotated[Literal["users", "rate"], key("unit of the load, as of a stage", _LOAD)]
    asked: Annotated[float, key("the load that was asked for, in that unit", _LOAD)]
    lengths: Annotated[
        str | None, key("its lengths, as `128:32`; null unless the sweep is over lengths", _LOAD)
    ]
    stages: Annotated[list[int], key("numbers of its stages", _LOAD)]
    results: Annotated[int, key("how many of them are a result; the others are left out", _LOAD)]
    figures: Annotated[
        dict[str, OverRepeats],
        key(
            "p50 and p99 of latencies (`ttft_p50_ms`), `requests_per_s`, `output_tokens_per_s`, "
            "`inputs_per_s`, `error_rate` and `goodput`",
            _REPEATS,
        ),
    ]
    prefix: Annotated[
        float | None, key("its share of a shared prefix; null unless the sweep sets one", _LOAD)
    ] = None

    @property
    def pair(self) -> str:
        """As that of its stages."""
        return self.lengths or "" if self.prefix is None else f"{self.prefix * 100:.6g}% shared"


# --- Verdict on a stage: whether its figures are a result, and of what they are one if they are not


#: Begins the reason of a stage whose client was the limit; it is the last one.
CLIENT_LIMITED = "client-limited: "

#: Reason of a stage that ended before its measured part began.
NOT_MEASURED = "it had no measured part: the run ended before, or the warm-up took all of it"

#: Note on a stage of few requests.
FEW = f"fewer than {FEWEST_FOR_LATENCIES} requests: intervals are wide, changes of latency may go unnoticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerdict:
    """What speaks against a stage.

    ``steady`` is None where too few requests began in it to tell or none succeeded, ``saturated`` in a closed
    loop, ``client`` (``ok``, ``suspect`` or ``invalid``) where nothing was measured. ``all_failed``:
    requests failed and none succeeded, which is the server's doing: the stage had its time, and the client
    is not invalid. ``reasons`` say why the stage is not a result, ``notes`` what else should be known of it.
    ``lengths`` are those of a sweep over them, ``prefix`` the hits of one over shares of a shared prefix.
    """

    steady: bool | None = None
    all_failed: bool = False
    saturated: bool | None = None
    client: ClientVerdict | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lengths: LengthsSeen | None = None
    prefix: PrefixHits | None = None

    @property
    def is_result(self) -> bool:
        return not self.reasons


def stage_verdict(
    m: Measured,
    manifest: Manifest,
    stage: StageFacts,
    prefix: PrefixHits | None = None,
    hung: UserTime | None = None,
) -> StageVerdict:
    """The verdict on a stage that was measured over its window.

    A stage whose load outran the server is not steady by that alone, so its other changes are not listed. How
    steadily requests fail is not looked at where all do. Users that ``hung`` to the end of the stage are a
    part of its load that was not served, whatever the others got.
    """
    course = StageCourse.of(m.c, m.window, stage.kind == "rate")
    overload = saturation(course, stage.unsent)
    population = m.population(np.arange(len(m.c)))
    asked = len(population.all)
    none_ok = asked > 0 and not len(population.ok)
    changes = [] if overload or none_ok else unsteady(course)
    client = _client(m, manifest)
    begun = len(course.in_order())
    found = [stage.fault] if stage.fault else []
    if none_ok:
        found.append(f"none of its {asked:,} requests succeeded")
    if overload:
        found.append(f"saturated: {overload}")
    if changes:
        found.append(f"not steady: {'; '.join(changes)}")
    if hung is not None:
        found.append(hung.hung_text)
    lengths = LengthsSeen.of(m, stage)
    if lengths is not None and lengths.reason:
        found.append(lengths.reason)
    found += () if prefix is None else prefix.reasons
    if is_clients := client.verdict == "invalid":
        found.append(f"{CLIENT_LIMITED}{client.reasons[0]}")
    few = begun < FEWEST_FOR_LATENCIES
    notes = [FEW] if few else []
    if lengths is not None and lengths.note:
        notes.append(lengths.note)
    if prefix is not None and prefix.note:
        notes.append(prefix.note)
    return StageVerdict(
        steady=False if overload or changes else None if few or none_ok else True,
        all_failed=none_ok and bool(len(population.failed)) and not stage.fault and not is_clients,
        saturated=bool(overload) if course.open_loop else None,
        client=client.verdict,
        reasons=tuple(found),
        notes=tuple(notes),
        lengths=lengths,
        prefix=prefix,
    )


def _client(m: Measured, manifest: Manifest) -> ClientFacts:
    population = m.population(np.arange(len(m.c)))
    medians_ms = {
        "itl": _median_ms(m.gaps.ascending()),
        "ttft": _median_ms(ordered(ttft(m.c)[population.ok])),
        "e2el": _median_ms(ordered(e2el(m.c)[population.ok])),
    }
    return client_validity(m.c, population.judged, manifest, Scale.of(m.window, medians_ms), m.judgement)


def _median_ms(ascending_s: Floats | Ascending) -> float | None:
    return percentile(ascending_s, 50.0) * 1e3 if len(ascending_s) else None


# --------------------
# Figures of a load over its repeats: what intervals within one stage cannot show.
#
# Between two stages of one load lies all that changes with time: caches, other tenants, temperatures. The
# interval of a mean over n repeats is x̄ ± t s / √n, with Student's t of n − 1 degrees of freedom.
# --------------------


PLACES = ("p50", "p99")


def repeats(stages: Sequence[Stage]) -> list[Repeats]:
    """Each load that was measured more than once at its lengths, in the order of first appearance.

    Stages that are not a result are counted and left out, but for those in which all requests failed: they
    have no latencies, and rates that are known.
    """
    loads: dict[tuple[float, str, str, float | None], list[Stage]] = {}
    for stage in stages:
        share = None if stage.prefix is None else stage.prefix.asked
        loads.setdefault((stage.asked, stage.kind, str(stage.lengths or ""), share), []).append(stage)
    return [
        _of_load(theirs, lengths or None, share)
        for (_, _, lengths, share), theirs in loads.items()
        if len(theirs) > 1
    ]


def _of_load(stages: Sequence[Stage], lengths: str | None, prefix: float | None) -> Repeats:
    results = [stage for stage in stages if stage.is_result and stage.figures]
    known = [each.figures for each in stages if each.figures and (each in results or each.all_failed)]
    values = {
        f"{metric.key}_{place}_ms": [part.latency_ms[metric.key][place] for part in known]
        for metric in shown_in(View.GROUPS)
        for place in PLACES
    } | {
        "requests_per_s": [part.throughput.requests_per_s for part in known],
        "output_tokens_per_s": [part.throughput.output_tokens_per_s for part in known],
        "inputs_per_s": [part.throughput.inputs_per_s for part in known],
        "error_rate": [part.requests.error_rate for part in known],
        "goodput": [part.goodput.ratio for part in known],
    }
    return Repeats(
        kind=stages[0].kind,
        asked=stages[0].asked,
        lengths=lengths,
        stages=[stage.number for stage in stages],
        results=len(results),
        figures={name: over(each) for name, each in values.items()},
        prefix=prefix,
    )


def over(values: Sequence[float | None]) -> OverRepeats:
    """Number, mean, extremes and the 95 % interval of the mean of the values that are known."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    n = len(known)
    if not n:
        return OverRepeats(n=0, mean=None, min=None, max=None, ci95=None)
    mean = math.fsum(known) / n
    ends = None
    if n > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
        reach = student_t(n - 1, CONFIDENCE) * deviation / math.sqrt(n)
        ends = (rounded(mean - reach), rounded(mean + reach))
    return OverRepeats(n=n, mean=mean, min=min(known), max=max(known), ci95=ends)


_EDGES = ("scheduled_ns", "ended_ns")


def compute(run: Run) -> list[Stage] | None:
    """None of a selection, and of a run without stages."""
    if run.of_selection or not run.manifest.stages:
        return None
    return stages(run.requests, run.manifest, run.question, run.rows)


def kept(run: Run) -> list[Stage]:
    """Those that no other one repeats."""
    return [stage for stage in run.figure(compute) or () if stage.repeated_as is None]


def repeats_of(run: Run) -> list[Repeats] | None:
    return repeats(kept(run)) or None


def stages(
    requests: Requests,
    manifest: Manifest,
    question: Question,
    rows: int,
    only: Container[int] | None = None,
) -> list[Stage]:
    """Each stage that has begun, in order.

    Every stage is measured in a pass of its own, over the requests that reach into its measured part: those
    of an earlier stage that are still in flight there deliver tokens in it too.

    Args:
        rows: number of requests that the run has, first tries included.
        only: numbers of the stages that are asked for; None: all.
    """
    lost = manifest.requests_lost(rows)
    missing_unsent = manifest.requests_unsent(question.warmup_of(manifest))
    unsent_known = manifest.is_sweep or not missing_unsent
    return [
        _stage(
            requests,
            manifest,
            question,
            stage,
            Missing(None if lost else 0, stage.unsent if unsent_known else None),
        )
        for stage in manifest.stages
        if only is None or stage.number in only
    ]


def _stage(
    requests: Requests, manifest: Manifest, question: Question, stage: StageFacts, missing: Missing
) -> Stage:
    window = stage_window(stage, manifest)
    if window is None:
        lengths = None if stage.lengths is None else LengthsSeen.unknown(stage.lengths)
        prefix = None if stage.prefix is None else PrefixHits(asked=stage.prefix, caches=stage.caches)
        why = stage.fault or NOT_MEASURED
        return _judged(stage, StageVerdict(reasons=(why,), lengths=lengths, prefix=prefix))
    theirs = touching(requests, window)
    m = measure(theirs, manifest, replace(question, window=window, where=None))
    figures = part_of_all(m, question.places, missing)
    if manifest.trajectories is not None:
        gpus = question.prices_of(manifest).gpus
        of_agents = agents(theirs, m.c, window, manifest.trajectories, gpus)
        figures = structs.replace(figures, agents=of_agents)
    verdict = stage_verdict(m, manifest, stage, PrefixHits.of(m, theirs, stage), hung_users(theirs, m, stage))
    until = _until(m, manifest, stage)
    if until is not None:
        verdict = replace(verdict, notes=(*verdict.notes, _ended(until, window.seconds)))
    return structs.replace(
        _judged(stage, verdict),
        offered=_offered(stage, m, theirs, manifest),
        window=StageWindow(
            start=iso(window.start_ns),
            end=iso(window.end_ns),
            start_s=(window.start_ns - manifest.started_ns) * 1e-9,
            seconds=window.seconds,
        ),
        until=until,
        figures=figures,
    )


def _judged(stage: StageFacts, verdict: StageVerdict) -> Stage:
    """A stage without figures."""
    return Stage(
        number=stage.number,
        kind=stage.kind,
        asked=stage.asked,
        offered=None,
        repeat=stage.repeat,
        lengths=None if verdict.lengths is None else verdict.lengths.figures(),
        repeated_as=stage.repeated_as,
        window=None,
        is_result=verdict.is_result,
        steady=verdict.steady,
        all_failed=verdict.all_failed,
        saturated=verdict.saturated,
        client=verdict.client,
        reasons=list(verdict.reasons),
        notes=list(verdict.notes),
        until=None,
        figures=None,
        prefix=None if verdict.prefix is None else verdict.prefix.figures(),
    )


def hung_users(requests: Requests, m: Measured, stage: StageFacts) -> UserTime | None:
    """The time of the users of a stage some of whom hung to its end; None where none did, and of a rate."""
    times = user_time(requests, m, are_all=False) if stage.kind == "users" else None
    return times if times is not None and times.hung.n else None


def _until(m: Measured, manifest: Manifest, stage: StageFacts) -> StageUntil | None:
    """The figure of ``--until`` in the whole stage; None without that option."""
    try:
        until = parse_until(str(manifest.options["until"]))
    except (KeyError, ValueError):  # another version's manifest may have what this one does not know
        return None
    look = look_at(m, until)
    return StageUntil(
        asked=until.text,
        value_ms=None if look.value_s is None else look.value_s * 1e3,
        interval_ms=None if look.ends_s is None else (look.ends_s[0] * 1e3, look.ends_s[1] * 1e3),
        half=look.half,
        is_early=stage.is_early,
        is_reached=is_enough(look, until),
    )


def _ended(until: StageUntil, seconds: float) -> str:
    """What ended the stage, as a note."""
    figure, _, asked = until.asked.partition("±")
    lasted = quantity(seconds)
    when = f"ended early, after {lasted} s" if until.is_early else f"lasted its {lasted} s"
    if until.half is None:
        return f"{when}: its requests do not give {figure} an interval; ±{asked} was asked for"
    return f"{when}: {figure} is known to ±{until.half:.1%}, ±{asked} was asked for"


def touching(requests: Requests, window: Window) -> Selected:
    """The requests that were scheduled before the window's end, and had not ended at its start."""
    mask = np.zeros(len(requests), dtype=np.bool_)
    at = 0
    for batch in requests.parts(_EDGES):
        scheduled_ns, ended_ns = (batch.ints(name) for name in _EDGES)
        mask[at : at + len(batch)] = (scheduled_ns < window.end_ns) & (ended_ns >= window.start_ns)
        at += len(batch)
    return Selected(requests, mask)


def _offered(stage: StageFacts, m: Measured, requests: Requests, manifest: Manifest) -> float | None:
    if stage.kind == "rate":
        return int(m.window.scheduled(m.c).sum()) / m.window.seconds
    load = asked_load(requests, manifest, m.c.origin_ns)
    if load is None:
        return None
    edges = np.array([m.window.start_s(m.c), m.window.end_s(m.c)])
    return float(load.levels(edges)[0])


def outside(run: Run) -> OutsideStages | None:
    """Requests of a sweep in no stage's measured part; None in other runs."""
    c, is_sweep = run.m.c, run.manifest.is_sweep and bool(run.figure(compute))
    window = sweep_window(run.manifest) if is_sweep else None
    if window is None:
        return None
    theirs = ~window.scheduled(c)
    failed = int((theirs & ~c.ok & ~c.cancelled).sum())
    return OutsideStages(requests=int(theirs.sum()), failed=failed)


#: Heads of a load, by its kind.
LOADS = {"users": "users", "rate": "requests/s"}

#: The cells of a stage that has no figures, from its length to its goodput.
NO_FIGURES = (*[UNDEFINED] * (3 + len(LATENCY_COLUMNS)), UNDEFINED, "", UNDEFINED)


def show(summary: "Summary") -> Section | None:
    """The figures by stage; None in a run without stages."""
    if not summary.stages:
        return None
    section = of_stages(summary.stages, tuple(_outside(summary)))
    return replace(section, table=section.table and having_figures(section.table, summary))


def of_stages(found: Sequence[Stage], outside: tuple[Line, ...] = ()) -> Section:
    """The figures of stages, one at least, with why some are not a result; a row for each, in their order.

    Args:
        outside: notes on all stages, and on what is in none.
    """
    kinds = dict.fromkeys(LOADS[stage.kind] for stage in found)
    columns = (
        Column("Stage", left=True),
        Column("prefix" if any(stage.prefix for stage in found) else "lengths", left=True),
        Column("asked", over=" or ".join(kinds)),
        Column("offered", over=" or ".join(kinds)),
        Column("measured", wide=True),
        Column("requests", wide=True),
        Column("errors", wide=True),
        *LATENCY_COLUMNS.values(),
        *RATE_COLUMNS,
        Column("goodput"),
        Column("result", left=True),
    )
    table = Table(columns, tuple(map(_stage_row, found)))
    notes = (*(_why_not(s) for s in found if not s.is_result), *outside, *_remarks(found), *meaning_in(table))
    return Section("Stages", table=table, notes=notes)


def stage_label(number: int, repeat: int) -> str:
    return f"{number}" if not repeat else f"{number} (repeat {repeat})"


def _stage_row(stage: Stage) -> TableRow:
    tone = Tone.PLAIN if stage.is_result else Tone.WARN
    start = (stage_label(stage.number, stage.repeat), stage.pair, load(stage.asked), number(stage.offered))
    result = result_of(stage)
    part, window = stage.figures, stage.window
    if part is None or window is None:
        return TableRow((*start, *NO_FIGURES, result), tone)
    cut = is_cut(part.requests.cut_share)
    return TableRow(
        (
            *start,
            seconds(window.seconds),
            count(part.requests.population),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
            result,
        ),
        tone,
    )


def result_of(stage: Stage) -> str:
    if stage.is_result:
        return "yes"
    if stage.all_failed:
        return "NO: all failed"
    if stage.saturated:
        return "NO: saturated"
    if stage.steady is False:
        return "NO: not steady"
    if stage.lengths is not None and stage.lengths.is_other:
        return "NO: lengths"
    if stage.prefix is not None and stage.prefix.is_other:
        return "NO: hits"
    return "NO: client" if stage.client == "invalid" else "NO"


def _why_not(stage: Stage) -> Line:
    why = "; ".join(stage.reasons)
    return Line(f"stage {stage.number} ({_load(stage)}) is not a result: {clean(why)}", Tone.WARN)


def _outside(summary: "Summary") -> Iterator[Line]:
    """The SLO of a sweep, and failures that are in no stage: those of ramps, warm-ups and drains."""
    if summary.is_sweep and (slo := limits(summary.goodput)):
        yield Line(f"goodput: {', '.join(slo.values())}", Tone.FAINT)
    outside = summary.outside_stages
    if outside is not None and outside.failed:
        failed = f"{count(outside.failed)} of {plural(outside.requests, 'request')} failed"
        yield Line(f"outside the stages (ramp, warm-up, drain) {failed}", Tone.WARN)


def _remarks(found: Sequence[Stage]) -> Iterator[Line]:
    """What is noted of stages, the same note of several ones once."""
    of_note: dict[str, list[str]] = {}
    for stage in found:
        for note in stage.notes:
            of_note.setdefault(note, []).append(str(stage.number))
    for note, numbers in of_note.items():
        which = f"stage {numbers[0]}" if len(numbers) == 1 else f"stages {', '.join(numbers)}"
        yield Line(f"{which}: {clean(note)}", Tone.FAINT)


def _load(stage: Stage) -> str:
    asked = plural(stage.asked, "user") if stage.kind == "users" else f"{load(stage.asked)} requests/s"
    return f"{asked}, {stage.pair} tokens" if stage.pair else asked


# --- Figures of each load over its repeats


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


def show_repeats(summary: "Summary") -> Section | None:
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
    text = percent if name in _SHARES else number
    if over.ci95 is None or over.ci95[1] is None:
        return text(over.mean)
    return f"{text(over.mean)} ± {text(over.ci95[1] - over.mean)}"

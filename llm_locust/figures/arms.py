"""Arms of an interleaved comparison: the figures of each, and their differences from the first."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.comparison import Row, Verdict, explained, joint_confidence, verdict_on
from llm_locust.figures.gate_rules import GateOutcome
from llm_locust.figures.goodput import unplaced
from llm_locust.figures.parts import (
    LATENCY_COLUMNS,
    RATE_COLUMNS,
    PartFigures,
    having_figures,
    part_of_all,
    rate_cells,
)
from llm_locust.figures.sides import METRICS, Compared, Metric, counted_in_share, figure_label, table_metrics
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
    meaning_in,
    number,
    percent,
    sentence,
)
from llm_locust.figures.user_time import UserTime, user_time
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import Floats, Mask, Rows
from llm_locust.metrics.limits import MetricKind
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.select import Selected, without_first_tries
from llm_locust.metrics.stats.bootstrap import CELLS, StandardError, standard_error
from llm_locust.metrics.stats.censoring import PERCENTILES, ordered, percentile
from llm_locust.metrics.stats.estimates import Difference
from llm_locust.metrics.stats.intervals import FEWEST, FEWEST_OF_MEAN, needed, rounded, share_ends
from llm_locust.metrics.structs import Interval, SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_ARM = "the arm"
_PAIR = "the arm and the first one"


class ArmRow(SummaryPart, frozen=True):
    """One figure of two arms."""

    metric: Annotated[str, key("the figure, under the name that gates give it", _PAIR)]
    unit: Annotated[Literal["ms", "share", "number"], key("of base, new and difference", _PAIR)]
    base: Annotated[float | None, key("the first arm's figure; null where it has none", "the first arm")]
    new: Annotated[float | None, key("this arm's figure; null where it has none", _ARM)]
    difference: Annotated[float | None, key("new − base", _PAIR)]
    difference_interval: Annotated[
        Interval,
        key("its interval, paired in time, of the confidence of `confidence`; null: not known", _PAIR),
    ]
    change: Annotated[float | None, key("the difference as a share of base", _PAIR)]
    change_interval: Annotated[Interval, key("the same interval as a share of base", _PAIR)]
    verdict: Annotated[
        str,
        key(
            "`better`, `worse`, `no difference beyond noise`, `too few samples`, or `undetermined` where "
            "requests that were given up leave a figure open, or all values are equal",
            _PAIR,
        ),
    ]
    reason: Annotated[str | None, key("why it is undetermined", _PAIR)]


class ArmDifferences(SummaryPart, frozen=True):
    """One arm set against the first."""

    arm: Annotated[str, key("name of the first arm, which is base", _PAIR)]
    confidence: Annotated[
        float,
        key("of each interval, such that those of all arms and figures together hold with 95 %", "all arms"),
    ]
    rows: list[ArmRow]


class ArmSummary(SummaryPart, frozen=True):
    """One target of an interleaved comparison."""

    name: Annotated[str, key("name of the arm: the column `arm` of its requests", _ARM)]
    host: Annotated[str, key("base URL of its API", _ARM)]
    model: Annotated[str | None, key("model that it was asked for; null in runs of older versions", _ARM)]
    differs_in: Annotated[
        list[str], key("in what its requests differ from those of the run, in words; headers by name", _ARM)
    ]
    share_asked: Annotated[float, key("share of the requests that it was to get", "all requests")]
    share: Annotated[
        float | None,
        key("share of the requests that it got; sessions go to one arm as a whole", "all requests"),
    ]
    figures: Annotated[
        PartFigures,
        key(
            "`requests`, `latency_ms`, `latency_ms_adjusted`, `throughput` and `goodput` as in the summary",
            "the arm, in the window",
        ),
    ]
    against: ArmDifferences | None


# --------------------
# What each request does to a figure, and the error of a difference between two arms.
#
# Both arms ran at the same time, so what drifts is in both. An error for each arm alone would count the
# drift twice; the error of their difference must not have it at all. So the requests of both arms are put
# into the same cells of time, and what is summed up in a cell is what its requests contribute to the
# **difference**: a drift contributes as much to one arm as to the other.
#
# The contribution of a request to a mean x̄ of n is (x − x̄) / n, to a share likewise; to a percentile Q(p)
# it is −(1{x ≤ Q} − p) / (n f), where 1 / f, the slope of the quantile function, is its difference quotient
# over twice the independent standard error on both sides (Siddiqui 1960, Bloch and Gastwirth 1968). The
# variance of their sum is by blocks of cells (:mod:`~llm_locust.metrics.stats.bootstrap`). Where requests
# belong to sessions, which are assigned as a whole, the variance by sessions is computed too, and the
# larger one counts.
# --------------------


#: Independent standard errors of a share on each side over which the quantile function's slope is taken.
_SLOPE_REACH = 2.0

#: What contributes less than this share of a figure to it is the rounding of its mean.
_ROUNDING = 1e-12

#: As in :mod:`~llm_locust.metrics.stats.intervals`: the share of the needed samples that a figure's own worth
#: must reach, and how many times as many samples are needed at most where they depend on each other.
_LEAST_OWN, _DEPENDENT = 0.75, 2.0


@dataclass(frozen=True, slots=True)
class Influence:
    """A figure of one arm and what it is made of.

    Attributes:
        value: in the figure's unit; +∞ where a percentile is.
        of: what each request contributes to it.
        times_s: of the requests, after the start of the window.
        sessions: the session of each request, by number; empty where requests have none.
        fewest: independent samples that its interval needs.
        share: number of hits and of requests, of a share.
    """

    value: float
    of: Floats
    times_s: Floats
    sessions: NDArray[np.int64]
    fewest: float
    share: tuple[float, int] | None = None

    @property
    def varies(self) -> bool:
        """Whether the samples show how they vary, beyond rounding; of a share their number does."""
        least = _ROUNDING * abs(self.value) / max(1, len(self.of))
        return self.share is not None or bool((np.abs(self.of) > least).any())


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """Samples of an arm: their values, times after the start of the window, and sessions."""

    values: Floats
    times_s: Floats
    sessions: NDArray[np.int64]

    def known(self) -> "ArmSamples":
        """Those with a value."""
        mask = ~np.isnan(self.values)
        sessions = self.sessions[mask] if len(self.sessions) else self.sessions
        return ArmSamples(self.values[mask], self.times_s[mask], sessions)

    def mean(self) -> Influence | None:
        """Their mean; None without any."""
        n = len(self.values)
        if not n:
            return None
        value = float(self.values.mean())
        return self._made(value, (self.values - value) / n, fewest=FEWEST_OF_MEAN)

    def share(self) -> Influence | None:
        """The share of those that are 1 and not 0; None without any."""
        n = len(self.values)
        if not n:
            return None
        hits = float(self.values.sum())
        found = self._made(hits / n, (self.values - hits / n) / n, fewest=FEWEST)
        return replace(found, share=(hits, n))

    def percentile(self, percent: float) -> Influence | None:
        """One of their percentiles; None without any."""
        n = len(self.values)
        if not n:
            return None
        ascending, p = ordered(self.values), percent / 100
        value = percentile(ascending, percent)
        reach = max(_SLOPE_REACH * math.sqrt(p * (1 - p) / n), 1 / n)
        low, high = max(0.0, p - reach), min(1.0, p + reach)
        slope = (percentile(ascending, 100 * high) - percentile(ascending, 100 * low)) / (high - low)
        hits = (self.values <= value).astype(np.float64)
        of = -slope * (hits - hits.mean()) / n
        return self._made(value, of, fewest=needed(percent))

    def _made(self, value: float, of: Floats, *, fewest: float) -> Influence:
        return Influence(value, of, self.times_s, self.sessions, fewest)


def independence(base: Influence, new: Influence) -> float:
    """The variance that a difference of independent requests would have, as a share of its own; 1 at most.

    It is what one request is worth, in independent ones: n requests are worth n times as much. 0 where the
    arms' memory is too long for the run.
    """
    error = _error(base, new)
    if error is None or not error.settled:
        return 0.0
    variance = sum(float(arm.of @ arm.of) for arm in (base, new))
    return min(1.0, variance / error.value**2) if error.value else 1.0


def paired_difference(base: Influence, new: Influence, confidence: float, worth: float = 1.0) -> Difference:
    """New − base of two arms of one run; ends that are not known are infinite.

    Samples that are all equal do not show how they vary, so that the ends are not known either.

    Args:
        worth: :func:`independence` of the medians of the same samples. A tail that a run has seen too little
            of shows less dependence than there is: the medians decide too.
    """
    value = new.value - base.value
    error = _error(base, new)
    own = independence(base, new)
    enough = all(
        len(arm.of) * own >= _LEAST_OWN * arm.fewest
        and len(arm.of) * worth >= arm.fewest * min(_DEPENDENT, 1 / max(worth, 1e-9))
        for arm in (base, new)
    )
    if error is None or not error.settled or not enough or not (base.varies or new.varies):
        return Difference(value, -math.inf, math.inf)
    reach = error.reach(confidence)
    low, high = value - reach, value + reach
    if base.share is not None and new.share is not None:
        # Of few hits nobody knows how they vary: the interval is no narrower than that of independent ones.
        z = StandardError(1.0, math.inf).t(confidence)
        (base_low, base_high), (new_low, new_high) = (
            share_ends(arm.value, arm.share[1], z) for arm in (base, new) if arm.share is not None
        )
        low = min(low, value - math.hypot(new.value - new_low, base_high - base.value))
        high = max(high, value + math.hypot(new_high - new.value, base.value - base_low))
    return Difference(value, low, high)


def _error(base: Influence, new: Influence) -> StandardError | None:
    """Standard error of new − base: by blocks of time, or by sessions where that is larger."""
    by_time = _by_time(base, new)
    if by_time is None or not (len(base.sessions) and len(new.sessions)):
        return by_time
    by_session = _by_session(base, new)
    return by_session if by_session.value > by_time.value or not by_time.settled else by_time


def _by_time(base: Influence, new: Influence) -> StandardError | None:
    times_s = np.sort(np.concatenate([base.times_s, new.times_s]))
    cells = min(CELLS, len(times_s))
    if cells < 2:
        return None
    edges = times_s[np.arange(1, cells) * len(times_s) // cells]
    beside = sum(
        sign * np.bincount(np.searchsorted(edges, arm.times_s, side="right"), arm.of, cells)
        for sign, arm in ((-1.0, base), (1.0, new))
    )
    error = standard_error(np.asarray(beside), np.ones(cells))
    return error and replace(error, value=error.value * cells)


def _by_session(base: Influence, new: Influence) -> StandardError:
    """The sum of squares of what each session contributes, as of independent ones."""
    variance, fewest = 0.0, math.inf
    for arm in (base, new):
        _, numbers = np.unique(arm.sessions, return_inverse=True)
        sums = np.bincount(numbers, arm.of)
        fewest = min(fewest, len(sums))
        variance += float(sums @ sums) * len(sums) / max(1, len(sums) - 1)
    return StandardError(math.sqrt(variance), max(1.0, 2 * (fewest - 1)), settled=fewest >= 2)


# --- Each arm of a run set against the first: the rows of a comparison of two runs, with paired intervals


#: Why the interval of a difference is not known though there are samples enough.
SAME = "all values of each arm are equal: how they vary is not known"

#: An arm as it is compared: its requests, and the session of each by number (empty where they have none).
MeasuredArm = tuple[Compared, NDArray[np.int64]]


def compared_metrics(open_loop: bool) -> tuple[Metric, ...]:
    """The rows of the table: those of two runs but for rates, and for gaps between single tokens.

    How many requests an arm gets is drawn, so that its rates are not a result. Gaps are pooled over all
    requests, so that nobody knows which session they are of; TPOT has them per request.
    """
    return tuple(
        metric
        for metric in table_metrics(open_loop)
        if metric.kind is MetricKind.SHARE
        or (metric.kind is MetricKind.LATENCY and metric.latency in FORMULAS)
    )


def compare_arms(arms: Sequence[MeasuredArm], *, open_loop: bool) -> tuple[list[list[Row]], float]:
    """The rows of each arm but the first, against the first, and the confidence of each interval.

    All intervals together hold with 95 % (Bonferroni).
    """
    metrics = compared_metrics(open_loop)
    figures = [{metric.name: _influence(arm, metric) for metric in metrics} for arm in arms]
    first = figures[0] if figures else {}
    tested = sum(
        first[name] is not None and other[name] is not None for other in figures[1:] for name in other
    )
    confidence = joint_confidence(tested)
    return [
        [
            explained(_row(metric, first, other, confidence), arms[0][0], run)
            for metric in metrics
            if first[metric.name] is not None or other[metric.name] is not None
        ]
        for (run, _), other in zip(arms[1:], figures[1:], strict=True)
    ], confidence


#: The figures of an arm by their names; None where it has no sample.
Figures = Mapping[str, Influence | None]


def _row(metric: Metric, first: Figures, other: Figures, confidence: float) -> Row:
    base, new = first[metric.name], other[metric.name]
    if base is None or new is None:
        known = [None if figure is None else figure.value for figure in (base, new)]
        return Row(metric, known[0], known[1], None, Verdict.TOO_FEW)
    found = paired_difference(base, new, confidence, _worth(metric, first, other))
    if not (base.varies or new.varies):
        return Row(metric, base.value, new.value, found, Verdict.UNDETERMINED, SAME)
    verdict = verdict_on(metric, found, max(abs(base.value), abs(new.value)))
    return Row(metric, base.value, new.value, found, verdict)


def _worth(metric: Metric, first: Figures, other: Figures) -> float:
    """What a request is worth by the medians of the metric's latency; 1 for a share."""
    medians = [figures.get(f"p50_{metric.latency}") for figures in (first, other)]
    base, new = medians
    return 1.0 if base is None or new is None else independence(base, new)


def _influence(arm: MeasuredArm, metric: Metric) -> Influence | None:
    """The figure as :meth:`Compared.estimate` has it; None where the arm has no sample of it."""
    run, _ = arm
    estimate = run.estimate(metric)
    if estimate is None or not math.isfinite(estimate.value):
        return None
    if metric.kind is MetricKind.LATENCY:
        rows = run.population.ok
        samples = _samples(arm, rows, run.measured.values[metric.latency][rows]).known()
        if metric.statistic == "mean":
            return samples.mean()
        return samples.percentile(PERCENTILES[metric.statistic])
    if metric.name == "on_time":
        rows = run.population.ok
        assert run.measured.on_time is not None
        return _samples(arm, rows, run.measured.on_time[rows]).known().mean()
    counted = counted_in_share(run, metric)
    return None if counted is None else _samples(arm, counted[0], counted[1].astype(np.float64)).share()


def _samples(arm: MeasuredArm, rows: Rows, values: NDArray[np.float64]) -> ArmSamples:
    run, sessions = arm
    times_s = run.c.scheduled_s[rows] - run.window.start_s(run.c)
    return ArmSamples(values, times_s, sessions[rows] if len(sessions) else sessions)


# --- The ``arms`` of a summary: the figures of each arm, and how they differ from those of the first


_UNITS: dict[MetricKind, Literal["ms", "share", "number"]] = {
    MetricKind.LATENCY: "ms",
    MetricKind.SHARE: "share",
    MetricKind.NUMBER: "number",
}

#: Gates on the figures of one arm.
ArmGates = Callable[[PartFigures, Measured, UserTime | None], list[GateOutcome]]


def arms(
    requests: Requests,
    manifest: Manifest,
    question: Question,
    window: Window,
    missing: Missing,
    *,
    of_selection: bool,
    gates: ArmGates,
) -> tuple[list[ArmSummary], list[GateOutcome]]:
    """Each arm of a run in the order of its options, and the gates of all of them.

    Every arm is measured in a pass of its own, in the window of the run. Of a request without a record nobody
    knows the arm.

    Args:
        missing: requests without a record that may belong to an arm.
        of_selection: arms without a request were left out by a condition, and are left out here.
        gates: gates on the figures of an arm: over several arms they would be of no server.
    """
    stored = without_first_tries(requests).stored
    masks = _masks(stored, [arm.name for arm in manifest.arms])
    present = [arm for arm in manifest.arms if not of_selection or masks[arm.name].any()]
    plain = replace(question, window=window, where=None)
    measured, figures, judged = [], [], []
    for arm in present:
        requests_of = Selected(stored, masks[arm.name])
        run, sessions = _measured(requests_of, manifest, plain)
        m = run.measured
        measured.append((run, sessions))
        figures.append(part_of_all(m, question.places, missing.of_part))
        times = None if manifest.open_loop else user_time(without_first_tries(requests_of), m, are_all=False)
        judged += [structs.replace(each, arm=arm.name) for each in gates(figures[-1], m, times)]
    of = sum(len(run.c) for run, _ in measured)
    against: list[ArmDifferences | None] = [None] * len(present)
    if len(present) > 1:
        compared, confidence = compare_arms(measured, open_loop=manifest.open_loop)
        against[1:] = [
            ArmDifferences(
                arm=present[0].name, confidence=confidence, rows=[_figures_row(row) for row in rows]
            )
            for rows in compared
        ]
    found = [
        ArmSummary(
            name=arm.name,
            host=arm.url,
            model=arm.model or None,
            differs_in=list(arm.differs_in),
            share_asked=arm.share,
            share=len(run.c) / of if of else None,
            figures=part,
            against=beside,
        )
        for arm, (run, _), part, beside in zip(present, measured, figures, against, strict=True)
    ]
    return found, judged


def _masks(stored: Requests, names: list[str]) -> dict[str, Mask]:
    """Which requests each arm has; a byte a request and arm is kept."""
    masks = {name: np.zeros(len(stored), dtype=np.bool_) for name in names}
    at = 0
    for batch in stored.parts(["arm"]):
        labels = batch.labels("arm")
        for code, name in enumerate(labels.names):
            if name in masks:
                masks[name][at : at + len(batch)] = labels.codes == code
        at += len(batch)
    return masks


def _measured(
    requests: Requests, manifest: Manifest, question: Question
) -> tuple[Compared, NDArray[np.int64]]:
    of_arm = without_first_tries(requests)
    m = measure(of_arm, manifest, question)
    population = m.population(np.arange(len(m.c)))
    run = Compared(manifest, m, population, m.gaps.ascending(), lost=0, unsent=0)
    return run, _sessions(of_arm)


def _sessions(requests: Requests) -> NDArray[np.int64]:
    """The session of each request by number, a request without one being its own; empty without any."""
    columns = [batch.table.column("session") for batch in requests.parts(["session"])]
    chunks = [chunk for column in columns for chunk in column.chunks]
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return np.empty(0, dtype=np.int64)
    codes = pa.chunked_array(chunks).combine_chunks().dictionary_encode().indices
    found: NDArray[np.int64] = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    alone = found < 0
    found[alone] = -1 - np.arange(int(alone.sum()))
    return found


def _figures_row(row: Row) -> ArmRow:
    scale = 1e3 if row.metric.kind is MetricKind.LATENCY else 1.0
    return ArmRow(
        metric=row.metric.name,
        unit=_UNITS[row.metric.kind],
        base=None if row.base is None else row.base * scale,
        new=None if row.new is None else row.new * scale,
        difference=None if row.difference is None else rounded(row.difference.value * scale),
        difference_interval=_interval(row.difference, scale),
        change=None if row.change is None else rounded(row.change.value),
        change_interval=_interval(row.change, 1.0),
        verdict=str(row.verdict),
        reason=row.why_open,
    )


def _interval(found: Difference | None, scale: float) -> Interval:
    if found is None or not found.is_known:
        return None
    return rounded(found.low * scale), rounded(found.high * scale)


_TONES = {Verdict.BETTER: Tone.GOOD, Verdict.WORSE: Tone.BAD, Verdict.UNDETERMINED: Tone.WARN}

_SHORT = {str(Verdict.NO_DIFFERENCE): "no difference"}


def show(summary: "Summary") -> Iterator[Section]:
    """The arms side by side, then each against the first; nothing in a run without arms."""
    found = summary.arms
    if not found:
        return
    yield _figures(summary, found)
    for arm in found:
        if arm.against is not None:
            yield _differences(arm, arm.against)


def _figures(summary: "Summary", found: list[ArmSummary]) -> Section:
    columns = (
        Column("Arm", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share", wide=True),
        Column("errors"),
        *LATENCY_COLUMNS.values(),
        *(replace(column, wide=True) for column in RATE_COLUMNS),
        Column("goodput"),
    )
    table = having_figures(Table(columns, tuple(map(_row_of_arm, found))), summary)
    where = (
        Line(clean(f"{arm.name}: {', '.join((arm.host, *arm.differs_in))}"), Tone.FAINT, verbatim=True)
        for arm in found
    )
    return Section(
        "Arms",
        table=table,
        notes=(
            *where,
            *_of_models(found),
            *(
                Line(f"NO ANSWER from {arm.name}: it holds no gate", Tone.BAD)
                for arm in found
                if _is_silent(arm)
            ),
            *_unrecorded(summary, found[0]),
            Line(
                "requests were assigned at random; no figure of all arms together is shown",
                Tone.FAINT,
            ),
            *meaning_in(table),
        ),
    )


def _of_models(found: list[ArmSummary]) -> Iterator[Line]:
    if len({arm.model for arm in found}) > 1:
        yield Line(
            "the arms have different models: a token of one is not a token of another, and times per token "
            "and tokens/s compare the models too",
            Tone.WARN,
        )


def _unrecorded(summary: "Summary", arm: ArmSummary) -> Iterator[Line]:
    words = unplaced(summary, arm.figures.requests)
    if words:
        yield Line(
            f"{words}: it is not known to which arm they belong, and no arm's figures have them", Tone.WARN
        )


def _is_silent(arm: ArmSummary) -> bool:
    return not arm.figures.requests.ok


def _row_of_arm(arm: ArmSummary) -> TableRow:
    part = arm.figures
    cut = is_cut(part.requests.cut_share)
    return TableRow(
        (
            clean(arm.name),
            count(part.requests.population),
            percent(arm.share),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
        ),
        Tone.BAD if _is_silent(arm) else Tone.PLAIN,
    )


def _differences(arm: ArmSummary, against: ArmDifferences) -> Section:
    columns = (
        Column("Figure", left=True),
        Column(clean(against.arm)),
        Column(clean(arm.name)),
        Column("difference"),
        Column("interval"),
        Column("change", wide=True),
        Column("verdict", left=True, wraps=True, toned=True),
    )
    table = Table(columns, tuple(map(_difference_row, against.rows)))
    return Section(
        f"{clean(arm.name)} against {clean(against.arm)}",
        lines=tuple(_in_words(arm, against)),
        table=table,
        notes=(
            Line(
                f"intervals of {100 * against.confidence:.4g} % each, paired in time: all hold together "
                "with 95 %; latencies in ms, shares in percentage points",
                Tone.FAINT,
            ),
        ),
        key=f"arm_{arm.name}",
        stacked=True,
    )


def _in_words(arm: ArmSummary, against: ArmDifferences) -> Iterator[Line]:
    """What became worse and what better."""
    any_row = False
    for verdict in (Verdict.WORSE, Verdict.BETTER):
        rows = [row for row in against.rows if row.verdict == verdict]
        if rows:
            any_row = True
            named = ", ".join(f"{_label(row)} {_signed(row)}" for row in rows)
            yield Line(f"{clean(arm.name)} is {verdict} than {clean(against.arm)}: {named}", _TONES[verdict])
    few = sum(row.verdict == Verdict.TOO_FEW for row in against.rows)
    left_open = sum(row.verdict == Verdict.UNDETERMINED for row in against.rows)
    n, decided = len(against.rows), len(against.rows) - few - left_open
    if decided and not any_row:
        of = "any figure" if decided == n else f"{decided} of {n} figures"
        tone = Tone.GOOD if decided == n else Tone.WARN
        yield Line(f"{clean(arm.name)} and {clean(against.arm)}: no difference beyond noise in {of}", tone)
    rest = [
        f"{few} of {n} figures with too few samples" if few else "",
        f"{left_open} undetermined" if left_open else "",
    ]
    if any(rest):
        yield Line(sentence(rest), Tone.FAINT)


def _difference_row(row: ArmRow) -> TableRow:
    return TableRow(
        (
            _label(row),
            _value_text(row, row.base),
            _value_text(row, row.new),
            _signed(row),
            _interval_text(row),
            UNDEFINED if row.change is None else f"{100 * row.change:+.1f} %",
            f"undetermined: {clean(row.reason)}" if row.reason else _SHORT.get(row.verdict, row.verdict),
        ),
        next((tone for verdict, tone in _TONES.items() if row.verdict == verdict), Tone.PLAIN),
    )


def _label(row: ArmRow) -> str:
    return figure_label(METRICS[row.metric])


def _value_text(row: ArmRow, value: float | None) -> str:
    return percent(value) if row.unit == "share" else number(value)


def _signed(row: ArmRow) -> str:
    """The difference with its sign, in ms or percentage points."""
    if row.difference is None:
        return UNDEFINED
    return f"{_with_sign(row, row.difference)} {'pp' if row.unit == 'share' else row.unit}"


def _interval_text(row: ArmRow) -> str:
    if row.difference_interval is None:
        return UNDEFINED
    low, high = (None if end is None else _with_sign(row, end) for end in row.difference_interval)
    return f"{low} … {high}"


def _with_sign(row: ArmRow, value: float) -> str:
    if row.unit == "share":
        return f"{100 * value:+.2f}"
    text = number(abs(value))
    return text if text == "0" else ("-" if value < 0 else "+") + text

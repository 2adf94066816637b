"""What the stages of a sweep show together: the knee, the law of its throughput, and what overload does."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np

from llm_locust.core.texts import UNDEFINED, quantity
from llm_locust.figures.figure import Run
from llm_locust.figures.prefix_cache import PrefixWorth, StagePrefix, worth
from llm_locust.figures.stages import Stage, kept, result_of, stage_label
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
)
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.intervals import CONFIDENCE, rounded
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

T = TypeVar("T")

_SWEEP = "the stages that are results"


class KneeSummary(SummaryPart, frozen=True):
    """The knee of the median E2EL over the load (Kneedle)."""

    load: Annotated[
        float,
        key("the load whose median E2EL is farthest below the line between the first and the last", _SWEEP),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (bootstrap), in loads that were tried", _SWEEP)]
    depth: Annotated[float, key("that distance over the growth of the latency, 0.2 or more", _SWEEP)]
    latency_ms: Annotated[float, key("the median E2EL there, ms: the geometric mean of its repeats", _SWEEP)]


class UslParameter(SummaryPart, frozen=True):
    """A parameter of the law and its 95 % interval (bootstrap); null is infinite."""

    value: Annotated[float | None, key("least squares of relative errors of N / X; null: infinite", _SWEEP)]
    ci95: Annotated[list[float | None], key("its 95 % interval (bootstrap)", _SWEEP)]


class UslFigures(SummaryPart, frozen=True):
    """The universal scalability law of requests/s over mean requests in flight."""

    gamma: Annotated[UslParameter, key("requests/s of one request at a time", _SWEEP)]
    alpha: Annotated[UslParameter, key("contention: the share of work done one after the other", _SWEEP)]
    beta: Annotated[UslParameter, key("coherency: what each pair of requests costs", _SWEEP)]
    peak: Annotated[
        UslParameter, key("requests in flight with the highest throughput; null: it never falls", _SWEEP)
    ]
    plateau: Annotated[
        UslParameter,
        key("the highest throughput by the law, requests/s; null: it grows without end", _SWEEP),
    ]
    residual: Annotated[float, key("root mean square of the relative residuals", _SWEEP)]
    measured_to: Annotated[
        float | None, key("largest mean of requests in flight; beyond it the law is a model", _SWEEP)
    ]


class Overload(SummaryPart, frozen=True):
    """Good requests/s at the highest load, beside those of the best one."""

    best_load: Annotated[float, key("the load with the most good requests/s", "the stages")]
    best_good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    load: Annotated[float, key("the highest load; a saturated stage counts here", "the stages")]
    good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    kept: Annotated[float, key("their ratio", "the stages")]
    repeats: Annotated[int, key("repeats in which both loads were measured", "the stages")]
    ci95: Annotated[
        Interval, key("95 % interval of `kept` over those repeats; null for fewer than 2", "the stages")
    ]
    collapses: Annotated[bool, key("it is below 0.8", "the stages")]


class CurveFacts(SummaryPart, frozen=True):
    """What the stages of a sweep show together."""

    loads: Annotated[int, key("different loads that are results", "the sweep")]
    left_out: Annotated[int, key("stages that are not results, in no figure but `overload`", "the sweep")]
    knee: KneeSummary | None
    usl: UslFigures | None
    overload: Overload | None
    missing: Annotated[dict[str, str], key("why there is no `knee`, `usl` or `overload`", "the sweep")]


class CurveOfLengths(SummaryPart, frozen=True):
    """The curve of a sweep over lengths at one pair of them."""

    lengths: Annotated[str, key("input and output length of all its requests, as `128:32`", "the sweep")]
    curve: CurveFacts


# --------------------
# The universal scalability law, fitted to throughput over concurrency (Gunther 1993).
#
# X(N) = γ N / (1 + α (N − 1) + β N (N − 1)): γ is the throughput of one request at a time, **contention** α
# the share of the work that is done one after the other, **coherency** β what each pair of requests costs.
# With β > 0 the throughput has its peak at N = √((1 − α) / β) and falls beyond it; with β = 0 it approaches
# γ / α.
#
# N / X is linear in the parameters, so that the fit is least squares of its relative errors with α, β ≥ 0.
# --------------------


#: Three parameters and one degree of freedom.
FEWEST_LOADS = 4

#: The largest concurrency over the smallest from which the law can be seen.
LEAST_SPAN = 4.0

_DRAWS = 1_000
_ENDS = (0.025, 0.975)

Ends = tuple[float, float]


class NoFitError(ValueError):
    """Throughputs that the law cannot be fitted to; one line says why."""


@dataclass(frozen=True, slots=True)
class Usl:
    """The law's parameters, requests/s and shares."""

    gamma: float
    alpha: float
    beta: float

    def at(self, n: Floats) -> Floats:
        """Throughput at a concurrency."""
        found: Floats = self.gamma * n / (1 + self.alpha * (n - 1) + self.beta * n * (n - 1))
        return found

    @property
    def peak(self) -> float:
        """Concurrency with the highest throughput; infinite where more never hurts."""
        if self.alpha >= 1:
            return 1.0
        return math.sqrt((1 - self.alpha) / self.beta) if self.beta > 0 else math.inf

    @property
    def plateau(self) -> float:
        """The highest throughput: at the peak, or what it approaches; infinite where it grows for ever."""
        if math.isfinite(self.peak):
            return float(self.at(np.array([max(1.0, self.peak)]))[0])
        return self.gamma / self.alpha if self.alpha > 0 else math.inf


@dataclass(frozen=True, slots=True)
class UslFit:
    """The law, the fits of the bootstrap, and the root mean square of the relative residuals."""

    law: Usl
    draws: tuple[Usl, ...]
    residual: float

    def ends(self, name: str) -> Ends:
        """The 95 % interval of a parameter, ``peak`` or ``plateau``; an end may be infinite.

        A parameter that cannot be negative is biased under noise, so that most draws may be on one side of
        the fit: the interval is widened to hold it.
        """
        value = getattr(self.law, name)
        low, high = np.quantile([getattr(each, name) for each in self.draws], _ENDS, method="inverted_cdf")
        return min(float(low), value), max(float(high), value)

    def at(self, n: float) -> tuple[float, Ends]:
        """Throughput at a concurrency, with its 95 % interval."""
        point = np.array([n])
        drawn = [each.at(point)[0] for each in self.draws]
        low, high = np.quantile(drawn, _ENDS, method="inverted_cdf").tolist()
        return float(self.law.at(point)[0]), (low, high)


def fit_usl(n: Floats, x: Floats, errors: Floats, seed: int = 0) -> UslFit:
    """Fit the law to throughputs ``x`` at concurrencies ``n``.

    The error of each throughput is the larger of its own and of the residuals, which have what the law
    misses.

    Args:
        errors: standard errors of the logarithms of ``x``.

    Raises:
        NoFitError: there are too few concurrencies, or they are too near to each other.
    """
    kept = (n >= 1) & (x > 0)
    n, x, errors = n[kept], x[kept], errors[kept]
    if len(np.unique(n)) < FEWEST_LOADS:
        raise NoFitError(
            f"{FEWEST_LOADS} loads with a result and a concurrency of 1 or more are needed, "
            f"there {'is' if len(np.unique(n)) == 1 else 'are'} {len(np.unique(n))}"
        )
    if n.max() < LEAST_SPAN * n.min():
        raise NoFitError(
            f"the concurrency went from {quantity(n.min())} to {quantity(n.max())}: it needs to grow at "
            f"least {LEAST_SPAN:g}-fold"
        )
    (law,) = _fits(n, x[None])
    residuals = np.log(x / law.at(n))
    residual = math.sqrt(float((residuals**2).sum()) / (len(n) - 3))
    sigma = np.maximum(errors, residual)
    fitted, noise = law.at(n), np.random.default_rng(seed).standard_normal((_DRAWS, len(n)))
    return UslFit(law, _fits(n, fitted * np.exp(sigma * noise)), residual)


def _fits(n: Floats, x: Floats) -> tuple[Usl, ...]:
    """Least squares of (fit − N / X) over N / X; the best of the fits whose parameters are not negative.

    Args:
        n: shape (loads,).
        x: shape (fits, loads).
    """
    terms = np.stack([np.ones(len(n)), n - 1, n * (n - 1)], axis=1) * (x / n)[..., None]
    best, least = np.tile([1.0, 0.0, 0.0], (len(x), 1)), np.full(len(x), np.inf)
    for columns in ((0, 1, 2), (0, 1), (0, 2), (0,)):
        some = terms[..., columns]
        found = np.linalg.pinv(some).sum(axis=-1)
        errors = ((np.einsum("ijk,ik->ij", some, found) - 1) ** 2).sum(axis=-1)
        better = np.flatnonzero((found[:, 0] > 0) & (found >= 0).all(axis=-1) & (errors < least))
        best[better] = 0.0
        best[better[:, None], columns] = found[better]
        # No part of the law fits better than the whole of it.
        least[better] = errors[better] if len(columns) < 3 else 0.0
    return tuple(Usl(1 / one, serial / one, pairs / one) for one, serial, pairs in best.tolist())


# --------------------
# The knee of a latency over the load: from which load on more of it costs much latency.
#
# Kneedle (Satopää et al. 2011) for a curve that rises and bends upwards: both axes are scaled to 0 .. 1
# between the first and the last load, and the knee is the load at which the curve is farthest below the
# straight line between its ends. A straight line has none: the distance must be :data:`LEAST_DEPTH`. Its
# uncertainty is a bootstrap: each latency is drawn from what its stage leaves possible, and the knee is
# computed again.
# --------------------


#: Distance below the straight line, of the height of the curve, that makes a knee.
LEAST_DEPTH = 0.2

#: Share of the draws that must have a knee.
_MOST_DRAWS = 0.95


class NoKneeError(ValueError):
    """A curve without a knee; one line says why."""


@dataclass(frozen=True, slots=True)
class Knee:
    """``load`` is a load that was tried, ``low`` to ``high`` an interval of such loads: the curve between two
    of them is unknown. ``depth`` is the distance, in the height of the curve."""

    load: float
    low: float
    high: float
    depth: float


def find_knee(loads: Floats, latencies: Floats, errors: Floats, seed: int = 0) -> Knee:
    """The knee of latencies over loads.

    Args:
        loads: ascending, different.
        latencies: above 0.
        errors: standard errors of their logarithms.

    Raises:
        NoKneeError: there are too few loads, the latency does not grow, or it grows too evenly.
    """
    if len(loads) < FEWEST_LOADS:
        have = "load has" if len(loads) == 1 else "loads have"
        raise NoKneeError(f"{len(loads)} {have} a result; a knee needs {FEWEST_LOADS}")
    if latencies[-1] <= latencies[0]:
        raise NoKneeError("the latency does not grow with the load")
    at, depth = _deepest(loads, latencies)
    if depth < LEAST_DEPTH:
        raise NoKneeError(
            f"the latency grows too evenly: {quantity(depth)} of its growth lies between the curve and a "
            f"straight line, a knee needs {LEAST_DEPTH:g}"
        )
    noise = np.random.default_rng(seed).standard_normal((_DRAWS, len(loads)))
    found = [_deepest(loads, latencies * np.exp(errors * each)) for each in noise]
    knees = sorted(loads[i] for i, depth in found if depth >= LEAST_DEPTH)
    if len(knees) < _MOST_DRAWS * _DRAWS:
        raise NoKneeError(
            f"the latencies are too uncertain: with their errors {100 * len(knees) / _DRAWS:.0f} % of the "
            "curves have a knee"
        )
    low, high = np.quantile(knees, _ENDS, method="inverted_cdf").tolist()
    return Knee(float(loads[at]), low, high, depth)


def _deepest(loads: Floats, latencies: Floats) -> tuple[int, float]:
    """The point farthest below the line between the ends, and its distance; 0 where the curve falls."""
    height = latencies[-1] - latencies[0]
    if height <= 0:
        return 0, 0.0
    x = (loads - loads[0]) / (loads[-1] - loads[0])
    below = x - (latencies - latencies[0]) / height
    at = int(np.argmax(below))
    return at, float(below[at])


def pooled(
    loads: Sequence[float], values: Sequence[float], errors: Sequence[float]
) -> tuple[Floats, Floats, Floats]:
    """Loads ascending, each once: of repeated ones the geometric mean and its error."""
    load, logs, error = np.array(loads), np.log(values), np.array(errors)
    unique = np.unique(load)
    masks = [load == each for each in unique]
    mean = np.array([logs[mask].mean() for mask in masks])
    of_mean = np.array([np.sqrt((error[mask] ** 2).sum()) / mask.sum() for mask in masks])
    return unique, np.exp(mean), of_mean


#: The latency that a knee is looked for in, and its statistic.
METRIC, STATISTIC = "e2el", "p50"

#: Below this share of the highest rate of good requests, overload is called a collapse.
COLLAPSE = 0.8

_Z = 1.959963984540054


def compute(run: Run) -> CurveFacts | None:
    """Of a sweep that sets neither lengths nor shares of a shared prefix."""
    others = any(stage.lengths or stage.prefix for stage in run.manifest.stages)
    return curve(kept(run), run.manifest.seed) if run.manifest.is_sweep and not others else None


def of_lengths(run: Run) -> list[CurveOfLengths] | None:
    """Of a sweep over lengths."""
    if not run.manifest.is_sweep or any(stage.prefix for stage in run.manifest.stages):
        return None
    return curves(kept(run), run.manifest.seed) or None


def prefix_worth(run: Run) -> PrefixWorth | None:
    return worth(kept(run)) if run.manifest.is_sweep else None


def curve(stages: Sequence[Stage], seed: int = 0) -> CurveFacts | None:
    """The ``curve`` of a sweep's summary, from its ``stages``; None with fewer than two loads.

    Stages that are not a result are left out, and counted; those that their load saturated, or in which all
    requests failed, show overload.
    """
    if len({stage.asked for stage in stages}) < 2:
        return None
    results = [stage for stage in stages if stage.is_result and stage.figures is not None]
    missing: dict[str, str] = {}

    def part(name: str, made: Callable[[], T]) -> T | None:
        try:
            return made()
        except ValueError as e:
            missing[name] = str(e)
            return None

    return CurveFacts(
        loads=len({stage.asked for stage in results}),
        left_out=len(stages) - len(results),
        knee=part("knee", lambda: _knee(results, seed)),
        usl=part("usl", lambda: _usl(results, seed)),
        overload=part("overload", lambda: _overload(stages)),
        missing=missing,
    )


def curves(stages: Sequence[Stage], seed: int = 0) -> list[CurveOfLengths]:
    """The ``curves`` of a sweep over lengths: that of each pair that has one, in the order of their stages.

    Loads at other lengths are loads of another kind: no figure is of several pairs.
    """
    by_pair: dict[str, list[Stage]] = {}
    for stage in stages:
        if stage.lengths is not None:
            by_pair.setdefault(str(stage.lengths), []).append(stage)
    found = {pair: curve(theirs, seed) for pair, theirs in by_pair.items()}
    return [CurveOfLengths(lengths=pair, curve=each) for pair, each in found.items() if each is not None]


def log_error(ends: Interval, fallback: float) -> float:
    """Standard error of the logarithm of a figure, by its 95 % interval."""
    low, high = ends or (None, None)
    return fallback if low is None or high is None or low <= 0 else math.log(high / low) / 2 / _Z


def _knee(results: Sequence[Stage], seed: int) -> KneeSummary:
    tables = [(stage.asked, stage.figures.latency_ms[METRIC]) for stage in results if stage.figures]
    known = [(load, table) for load, table in tables if (table[STATISTIC] or 0) > 0]
    if not known:
        raise NoKneeError("no stage with a result has a latency")
    loads, medians = [load for load, _ in known], [table[STATISTIC] for _, table in known]
    found = find_knee(*pooled(loads, medians, [_latency_error(table) for _, table in known]), seed)
    there = [median for load, median in zip(loads, medians, strict=True) if load == found.load]
    return KneeSummary(
        load=found.load,
        ci95=[found.low, found.high],
        depth=rounded(found.depth),
        latency_ms=rounded(math.exp(math.fsum(map(math.log, there)) / len(there))),
    )


def _latency_error(table: Mapping[str, Any]) -> float:
    spread = (table["std"] or 0.0) / (table["mean"] or 1.0)
    return log_error(table["ci95"].get(STATISTIC), 1.2533 * spread / math.sqrt(max(1, table["n"])))


def _usl(results: Sequence[Stage], seed: int) -> UslFigures:
    fit = fit_usl(*throughputs(results), seed)
    found = {
        name: UslParameter(
            value=_finite(getattr(fit.law, name)), ci95=[_finite(end) for end in fit.ends(name)]
        )
        for name in ("gamma", "alpha", "beta", "peak", "plateau")
    }
    flights = [stage.figures.throughput.concurrency_mean for stage in results if stage.figures]
    measured_to = max((each for each in flights if each is not None), default=None)
    return UslFigures(**found, residual=rounded(fit.residual), measured_to=measured_to)


def throughputs(results: Sequence[Stage]) -> tuple[Floats, Floats, Floats]:
    """Mean concurrency, requests/s, and the standard error of their logarithm, of each stage."""
    rows = []
    for figures in (stage.figures for stage in results if stage.figures):
        part = figures.throughput
        rate, n = part.requests_per_s or 0.0, max(1, figures.requests.ok)
        if rate > 0 and part.concurrency_mean is not None:
            error = log_error(part.ci95.get("requests_per_s"), 1 / math.sqrt(n))
            rows.append((part.concurrency_mean, rate, error))
    n_, x, errors = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return n_, x, errors


def _overload(stages: Sequence[Stage]) -> Overload:
    """The rate of good requests at the highest load as a share of the highest rate, repeats by their mean.

    A stage that is a result shows it, and so does one that its load saturated, or in which all failed.

    Raises:
        ValueError: there was no SLO, nothing good, or no load beyond the best one.
    """
    of_load: dict[float, dict[int, float]] = {}
    for stage in stages:
        shows = stage.is_result or stage.saturated or stage.all_failed
        if stage.figures is None or not shows or (stage.lengths is not None and stage.lengths.is_other):
            continue
        rate = stage.figures.goodput.requests_per_s
        if rate is None:
            raise ValueError("no SLO was given, so nothing is good")
        of_load.setdefault(stage.asked, {})[stage.repeat] = rate
    rates = {load: math.fsum(found.values()) / len(found) for load, found in of_load.items()}
    best, last = max(rates, key=lambda load: rates[load], default=0.0), max(rates, default=0.0)
    if not rates or not rates[best] > 0:
        raise ValueError("no load had a good request")
    if last == best:
        raise ValueError("the highest load has the most good requests: none was beyond the best one")
    kept = rates[last] / rates[best]
    both = of_load[best].keys() & of_load[last].keys()
    pairs = [(of_load[best][repeat], of_load[last][repeat]) for repeat in sorted(both)]
    return Overload(
        best_load=best,
        best_good_per_s=rates[best],
        load=last,
        good_per_s=rates[last],
        kept=rounded(kept),
        repeats=len(pairs),
        ci95=_ratio_ends(kept, pairs),
        collapses=kept < COLLAPSE,
    )


def _ratio_ends(ratio: float, pairs: Sequence[tuple[float, float]]) -> Interval:
    """The 95 % interval of a ratio of two means, Σ y / Σ x over repeats; None with fewer than two.

    By the residuals y − r x, whose error is that of the ratio (Cochran 1977, 6.4), and Student's t.
    """
    n = len(pairs)
    if n < 2:
        return None
    mean = math.fsum(x for x, _ in pairs) / n
    squares = math.fsum((y - ratio * x) ** 2 for x, y in pairs)
    reach = student_t(n - 1, CONFIDENCE) * math.sqrt(squares / (n - 1) / n) / mean if mean > 0 else math.inf
    return (rounded(max(0.0, ratio - reach)), rounded(ratio + reach)) if math.isfinite(reach) else None


def _finite(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None


# --- What the stages of a sweep show together: the knee, the law of the throughput, overload


def show(summary: "Summary") -> Iterator[Section]:
    """A line for each, or why there is none, of each pair of lengths; nothing of a run without loads."""
    unit = _unit(summary)
    if summary.curve is not None:
        yield _section("Over the loads", summary.curve, unit)
    for each in summary.curves or ():
        yield _section(f"Over the loads, {clean(each.lengths)} tokens", each.curve, unit)


def _unit(summary: "Summary") -> str:
    return "users" if any(stage.kind == "users" for stage in summary.stages or ()) else "requests/s"


def knee_of(summary: "Summary") -> str:
    """Where the knee of a sweep is, ``knee at 8 users``; empty of a run without one."""
    found = summary.curve and summary.curve.knee
    return f"knee at {load(found.load)} {_unit(summary)}" if found else ""


def _section(title: str, found: CurveFacts, unit: str) -> Section:
    left_out = f"without {plural(found.left_out, 'stage')} that have no result" if found.left_out else ""
    return Section(
        title,
        tuple(_lines(found, unit)),
        notes=(Line(left_out, Tone.FAINT),) if left_out else (),
        stacked=True,
    )


def _lines(found: CurveFacts, unit: str) -> Iterator[Line]:
    yield from ([_missing("no knee", found, "knee")] if found.knee is None else _knee_lines(found.knee, unit))
    yield from (
        [_missing("throughput fits no law", found, "usl")] if found.usl is None else _usl_lines(found.usl)
    )
    yield (
        _missing("overload not seen", found, "overload")
        if found.overload is None
        else _overload_line(found.overload, unit)
    )


def _missing(what: str, found: CurveFacts, name: str) -> Line:
    return Line(f"{what}: {clean(found.missing.get(name, ''))}", Tone.FAINT)


def _knee_lines(knee: KneeSummary, unit: str) -> Iterator[Line]:
    ends = _ends(knee.ci95)
    yield Line(
        f"knee at {load(knee.load)} {unit} ({ends}): up to there the median E2EL grows little, to "
        f"{number(knee.latency_ms)} ms"
    )


def _usl_lines(usl: UslFigures) -> Iterator[Line]:
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


def _overload_line(part: Overload, unit: str) -> Line:
    beside = (
        f"{number(part.good_per_s)} good requests/s at {load(part.load)} {unit}, {percent(part.kept)} of "
        f"the {number(part.best_good_per_s)} at {load(part.best_load)} ({_over_repeats(part)})"
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


# --- Prefix-cache hits of the stages of an experiment, and what they are worth


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


def show_prefix_hits(summary: "Summary") -> Section | None:
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

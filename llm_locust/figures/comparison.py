"""Two runs set against each other: which differences are beyond noise, and what makes them unlike.

Every figure of the table gets the interval of its difference (:mod:`llm_locust.metrics.stats.estimates`, its
errors by a block bootstrap). With 25 figures at 95 % each, three of four comparisons of a server with
itself would find something; so each interval is of 1 − 0.05 / (number of figures), by Bonferroni, and
all of them hold together with 95 %: where two runs are of the same server under the same load, no figure at
all is beyond noise in 95 of 100 comparisons. Figures of one run move together, so that it is more.

What is noise is learned inside each run. What differs from run to run, such as another machine or
another placement, is in no interval: runs that are repeated show it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.figures.completeness import completeness
from llm_locust.figures.sides import Compared, Metric, table_metrics
from llm_locust.metrics.columns import SOURCES
from llm_locust.metrics.limits import MetricKind
from llm_locust.metrics.stats.estimates import Difference, Estimate, alike, difference

# --- Why runs may not be set against each other: plain sentences, the gravest first


#: Window lengths and answer lengths may differ by this share.
_ALIKE = 0.05


def doubts(run: Compared) -> list[str]:
    """What stands against comparing a run with any other; each sentence is without its subject."""
    found = []
    client = run.client()
    if client.verdict != "ok":
        found.append(f"its client is {client.verdict}: {'; '.join(client.reasons)}")
    records = completeness(run.manifest, len(run.c))
    if not records.complete:
        lost = f"{records.records_lost} requests have no record"
        found.append(f"it is incomplete: {lost}, {records.workers_lost} workers were lost")
    if records.cut_short:
        found.append(f"it was cut short: {run.manifest.stop_reason or 'a fault'}")
    return found


def unlike(base: Compared, new: Compared, not_load: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each thing that may make a difference beside the server itself.

    Args:
        not_load: options that do not change what was asked of the server, or that have a sentence of their
            own.
    """
    a, b = base.manifest, new.manifest
    return [
        *_models(a, b),
        *_apis(base, new),
        *_load(a, b, not_load),
        *_windows(base, new),
        *_answers(base, new),
        *_seeds(a, b),
    ]


def unlike_beside_load(base: Compared, new: Compared, not_load: frozenset[str] = frozenset()) -> list[str]:
    """As :func:`unlike`, of runs that are to differ in how much was asked for, for how long, by which seed.

    Args:
        not_load: with the options that say how much.
    """
    return [
        *_models(base.manifest, new.manifest),
        *_apis(base, new),
        *_load(base.manifest, new.manifest, not_load),
        *_answers(base, new),
    ]


def models_differ(base: Compared, new: Compared) -> bool:
    """Whether tokens of the two runs are of different tokenizers, as far as is known."""
    return base.manifest.model != new.manifest.model


def _models(a: Manifest, b: Manifest) -> Iterator[str]:
    if a.model != b.model:
        yield (
            f"different models: {_text(a.model)} and {_text(b.model)}. Tokens of different tokenizers are "
            "not comparable: use output characters/s instead of the figures per token (†)"
        )


def _apis(base: Compared, new: Compared) -> Iterator[str]:
    """Another API has other prompts: a chat template, a system prompt, nothing at all around them."""
    if base.apis and new.apis and base.apis != new.apis:
        yield f"different APIs: {', '.join(base.apis)} and {', '.join(new.apis)}"


def _load(a: Manifest, b: Manifest, not_load: frozenset[str]) -> Iterator[str]:
    if a.open_loop != b.open_loop:
        kinds = ["open loop" if m.open_loop else "closed loop" for m in (a, b)]
        yield f"different load: {kinds[0]} and {kinds[1]}"
    if (a.scenario_document or a.scenario) != (b.scenario_document or b.scenario):
        yield f"different scenarios: {_text(a.scenario)} and {_text(b.scenario)}"
    for option in sorted((a.options.keys() | b.options.keys()) - not_load):
        if a.options.get(option) != b.options.get(option):
            ours, theirs = (_text(m.options.get(option)) for m in (a, b))
            yield f"different --{option.replace('_', '-')}: {ours} and {theirs}"
    if a.class_slos != b.class_slos:
        yield "different limits of classes: each run's own are used"
    if a.slo != b.slo:
        yield f"different SLOs: {_text(a.slo)} and {_text(b.slo)}; both are judged by one, see above"


def _windows(base: Compared, new: Compared) -> Iterator[str]:
    a, b = base.window, new.window
    if base.manifest.warmup_s != new.manifest.warmup_s:
        yield f"different warm-up: {base.manifest.warmup_s:g} s and {new.manifest.warmup_s:g} s"
    if _rule(base) != _rule(new):
        yield f'different windows: "{a.rule}" and "{b.rule}"'
    if _differ(a.seconds, b.seconds):
        yield f"different window lengths: {quantity(a.seconds)} s and {quantity(b.seconds)} s"


def _rule(run: Compared) -> str:
    """What kind of window it is; the numbers in a rule, such as the plateau, are results."""
    return run.window.rule.partition(":")[0]


def _answers(base: Compared, new: Compared) -> Iterator[str]:
    if not models_differ(base, new):
        ours, theirs = (_mean_output(run) for run in (base, new))
        if _differ(ours, theirs):
            yield (
                f"different answer lengths: {quantity(ours)} and {quantity(theirs)} output tokens (mean); "
                "they change E2EL and rates"
            )
    sources = [_main_source(run) for run in (base, new)]
    if None not in sources and sources[0] != sources[1]:
        yield f"output tokens are counted differently: {sources[0]} and {sources[1]}"
    replicas = [len(set(run.c.replica.codes[run.c.replica.codes >= 0].tolist())) for run in (base, new)]
    if all(replicas) and replicas[0] != replicas[1]:
        yield f"different numbers of replicas: {replicas[0]} and {replicas[1]}"


def _seeds(a: Manifest, b: Manifest) -> Iterator[str]:
    if a.seed != b.seed:
        yield f"different seeds: {a.seed} and {b.seed}; lengths, prompts and schedule differ"


def _mean_output(run: Compared) -> float:
    tokens = run.c.output_tokens[run.population.ok]
    known = tokens[~np.isnan(tokens)]
    return float(known.mean()) if len(known) else np.nan


def _main_source(run: Compared) -> str | None:
    """Who counted most of the answers' tokens."""
    if not len(run.population.ok):
        return None
    counts = np.bincount(run.c.source[run.population.ok], minlength=len(SOURCES))
    return str(SOURCES[int(counts.argmax())])


def _differ(a: float, b: float) -> bool:
    """False where one is not known."""
    return abs(a - b) > _ALIKE * max(a, b)


def _text(value: Any) -> str:
    """An option's value; of the content of a file, such as a model's shape, the name that it gives itself."""
    if isinstance(value, dict) and value.get("name"):
        value = value["name"]
    return "none" if value in (None, "", []) else str(value)


# --- Which differences are beyond noise


#: Of all intervals of a comparison together.
CONFIDENCE = 0.95

#: A difference smaller than this share of the figures is the rounding of floats.
_SAME = 1e-9

#: Where an interval reaches further than this, as a share of the figures or in points of a share, the samples
#: are too few to say that there is no difference.
_COARSE, _COARSE_POINTS = 0.25, 0.05


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference beyond noise"
    TOO_FEW = "too few samples"  # a difference that matters could hide
    UNDETERMINED = "undetermined"  # requests without a known end leave the figure open


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of two runs, in its own unit (seconds for latencies); None where a run has none.

    ``difference`` is None too where a figure is infinite. ``why_open`` says why a run has no figure though it
    has samples.
    """

    metric: Metric
    base: float | None
    new: float | None
    difference: Difference | None
    verdict: Verdict
    why_open: str | None = None

    @property
    def missing(self) -> str:
        """The run without a figure, base where it is both."""
        return "base" if self.base is None else "new"

    @property
    def change(self) -> Difference | None:
        """The difference as a share of the base's figure, and its interval; None for a base of 0."""
        if self.difference is None or not self.base:
            return None
        d = self.difference
        return Difference(d.value / self.base, d.low / self.base, d.high / self.base)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``confidence`` is that of each row's interval, such that all hold together with 95 %."""

    base: Compared
    new: Compared
    rows: tuple[Row, ...]
    confidence: float

    def having(self, verdict: Verdict) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict is verdict)


def compare_in_turn(runs: Sequence[Compared]) -> list[Comparison]:
    """Each run against the one before: every figure of the table that one of the two has.

    The intervals of all comparisons hold together.
    """
    metrics = table_metrics(any(run.manifest.open_loop for run in runs))
    figures = [run.estimates(metrics) for run in runs]
    tested = [a[name] is not None and b[name] is not None for a, b in pairwise(figures) for name in a]
    confidence = joint_confidence(sum(tested))
    return [
        Comparison(
            base,
            new,
            tuple(
                explained(compare_figures(metric, a[metric.name], b[metric.name], confidence), base, new)
                for metric in metrics
                if a[metric.name] is not None or b[metric.name] is not None
            ),
            confidence,
        )
        for (base, new), (a, b) in zip(pairwise(runs), pairwise(figures), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FigureOverTime:
    """One figure of several runs in its own unit, with the 95 % interval of each; None is not known."""

    metric: Metric
    values: tuple[float | None, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]


def figures_over_time(runs: Sequence[Compared], metrics: Sequence[Metric]) -> dict[str, FigureOverTime]:
    """Each of ``metrics`` by its name, in the order of ``runs``."""
    found, of_runs = {}, [run.estimates(metrics) for run in runs]
    for metric in metrics:
        estimates = [each[metric.name] for each in of_runs]
        ends = [(None, None) if e is None else e.ends(CONFIDENCE) for e in estimates]
        found[metric.name] = FigureOverTime(
            metric,
            tuple(None if e is None else e.value for e in estimates),
            tuple(low for low, _ in ends),
            tuple(high for _, high in ends),
        )
    return found


def joint_confidence(tested: int) -> float:
    """What each of so many intervals needs for all to hold together with 95 %, by Bonferroni."""
    return 1 - (1 - CONFIDENCE) / max(1, tested)


def compare_figures(metric: Metric, base: Estimate | None, new: Estimate | None, confidence: float) -> Row:
    """One figure of two runs.

    It is beyond noise where its interval does not hold 0. Where it does and an end of it is not known, or is
    further than a quarter of the figure (5 points of a share), the samples are too few; so they are where a
    run has none. Of an infinite figure only that the other is finite
    is known.
    """
    if base is None or new is None:
        known = [None if estimate is None else estimate.value for estimate in (base, new)]
        return Row(metric, known[0], known[1], None, Verdict.TOO_FEW)
    if math.isinf(base.value) or math.isinf(new.value):
        worse, better = math.isfinite(base.value), math.isfinite(new.value)
        verdict = Verdict.WORSE if worse else Verdict.BETTER if better else Verdict.UNDETERMINED
        return Row(metric, base.value, new.value, None, verdict)
    found = _difference(metric, *alike(base, new), confidence)
    size = max(abs(base.value), abs(new.value))
    verdict = verdict_on(metric, found, size)
    coarse = _COARSE_POINTS if metric.kind is MetricKind.SHARE else _COARSE * size
    if verdict is Verdict.NO_DIFFERENCE and max(-found.low, found.high) > coarse:
        verdict = Verdict.TOO_FEW
    return Row(metric, base.value, new.value, found, verdict)


def _difference(metric: Metric, base: Estimate, new: Estimate, confidence: float) -> Difference:
    """New − base, no further than it can be: a share moves by 100 pp, and nothing loses more than all."""
    most = 1.0 if metric.kind is MetricKind.SHARE else math.inf
    return difference(base, new, confidence).within(-min(most, max(base.value, 0.0) or most), most)


def explained(row: Row, base: Compared, new: Compared) -> Row:
    """The row with the reason where requests without a known end leave a figure open."""
    if row.base is not None and row.new is not None:
        return row
    why = (base if row.base is None else new).why_open(row.metric)
    return row if why is None else replace(row, why_open=why, verdict=Verdict.UNDETERMINED)


def verdict_on(metric: Metric, found: Difference, size: float) -> Verdict:
    """What a difference says; ``size`` is that of the larger figure."""
    if abs(found.value) > _SAME * size and (found.low > 0 or found.high < 0):
        return Verdict.BETTER if (found.low > 0) != metric.lower_is_better else Verdict.WORSE
    return Verdict.NO_DIFFERENCE if found.is_known else Verdict.TOO_FEW


# --- What more GPUs gave: several runs of the same load on deployments of other sizes


class ScalingError(ValueError):
    """Runs that cannot be set side by side; one line that says why."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """One run against the one with the fewest GPUs, of ``g`` and ``base`` GPUs.

    ``per_gpu`` = rate / g. ``speedup`` = rate / rate of the base. ``efficiency`` = speedup · base / g: 1
    where each GPU gives as much as before. ``serial`` is Karp and Flatt's (1/speedup − 1/p) / (1 − 1/p) with
    p = g / base: the share of the work that does not scale. One that grows with g points to communication,
    one that stays to a part that is done once (a gateway, the client). None for the base itself.
    """

    gpus: float
    rate: float
    per_gpu: float
    speedup: float
    efficiency: float
    serial: float | None


def scaling(runs: Iterable[tuple[float, float]]) -> list[Scaled]:
    """Each run's ``(GPUs, rate)`` by rising number of GPUs; of several with as many the median rate counts.

    Rates are what is compared, such as output tokens/s or good requests/s, at a load that saturates each
    deployment: at a fixed request rate a larger one is only idler.

    Raises:
        ScalingError: fewer than two numbers of GPUs, a number or rate that is not above 0.
    """
    rates: dict[float, list[float]] = {}
    for gpus, rate in runs:
        if not (math.isfinite(gpus) and gpus > 0 and math.isfinite(rate) and rate > 0):
            raise ScalingError(f"a run with {gpus:g} GPUs and a rate of {rate:g}: both must be above 0")
        rates.setdefault(gpus, []).append(rate)
    if len(rates) < 2:
        raise ScalingError(f"runs with {len(rates)} number of GPUs: name at least two, by --gpus of each run")
    base = min(rates)
    base_rate = median(rates[base])
    return [_scaled(gpus, median(rates[gpus]), base, base_rate) for gpus in sorted(rates)]


def _scaled(gpus: float, rate: float, base: float, base_rate: float) -> Scaled:
    speedup, times = rate / base_rate, gpus / base
    serial = None if times == 1 else (1 / speedup - 1 / times) / (1 - 1 / times)
    return Scaled(gpus, rate, rate / gpus, speedup, speedup / times, serial)

"""One side of a comparison: the figures of a run, each with what its interval is made of."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.client import ClientFacts, client_validity
from llm_locust.figures.client_rules import Scale
from llm_locust.figures.user_time import MOST_HUNG, user_time
from llm_locust.metrics.catalogue import FORMULAS, LATENCIES, LATENCY, View, shown_in
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.limits import SLO_METRICS, MetricKind
from llm_locust.metrics.measured import Measured, durations_of, measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import good_rates
from llm_locust.metrics.requests.rates import Spans, inputs_per_s, rate_per_s
from llm_locust.metrics.select import without_first_tries
from llm_locust.metrics.standstill import Silences, too_still
from llm_locust.metrics.stats.bootstrap import CELLS, order_cells, standard_error
from llm_locust.metrics.stats.censoring import PERCENTILES, Ascending, Durations, ordered, percentile
from llm_locust.metrics.stats.estimates import (
    Average,
    Estimate,
    Extremes,
    InBlocks,
    Noise,
    Percentile,
    Rate,
    Remembered,
    Share,
    blocks_of,
    merged,
)
from llm_locust.metrics.stats.intervals import CellSums, EffectiveSize, Observed, effective_sizes, share_size
from llm_locust.metrics.window import Population, Window

# --- The figures that two runs can be compared by, under the names that gates give them


_GATED = tuple(metric for metric in LATENCIES if metric.is_gated)
STATISTICS = ("mean", *PERCENTILES)

#: Figures per token or per event of a stream: with another tokenizer they are of another unit.
_OF_TOKENS = frozenset(
    {*(metric.key for metric in LATENCIES if metric.is_of_tokens), "output_tps", "input_tps", "total_tps"}
)


@dataclass(frozen=True, slots=True)
class Metric:
    """``latency`` and ``statistic`` are set for latencies alone. ``limit`` is the one of an attainment."""

    name: str
    kind: MetricKind
    lower_is_better: bool = False
    of_tokens: bool = False
    latency: str = ""
    statistic: str = ""
    limit: str = ""


_SHARES = (
    Metric("goodput", MetricKind.SHARE),
    *(
        Metric(f"attainment_{limit}", MetricKind.SHARE, limit=limit, of_tokens=limit in _OF_TOKENS)
        for limit in SLO_METRICS
    ),
    Metric("on_time", MetricKind.SHARE, of_tokens=True),
    Metric("error_rate", MetricKind.SHARE, lower_is_better=True),
)
_RATES = tuple(
    Metric(name, MetricKind.NUMBER, of_tokens=name in _OF_TOKENS)
    for name in ("rps", "output_tps", "output_cps", "input_tps", "total_tps", "goodput_rps", "inputs_per_s")
)
_LATENCIES = tuple(
    Metric(
        f"{statistic}_{latency.key}",
        MetricKind.LATENCY,
        lower_is_better=True,
        of_tokens=latency.is_of_tokens,
        latency=latency.key,
        statistic=statistic,
    )
    for latency in _GATED
    for statistic in STATISTICS
)

#: Every figure that has an interval, by its name.
METRICS = {metric.name: metric for metric in (*_LATENCIES, *_SHARES, *_RATES)}

#: Figures of a run without one, and why.
NOT_COMPARED = {
    "requests": "the number of requests is what was asked for, not a result",
    **{f"max_{each.key}": "the largest of many has no interval: gate p99_9 or p99" for each in _GATED},
}

_SHOWN_STATISTICS = ("mean", "p50", "p95", "p99")
_SHOWN_RATES = ("rps", "output_tps", "output_cps", "goodput_rps", "inputs_per_s")


def table_metrics(open_loop: bool) -> tuple[Metric, ...]:
    """The rows of a comparison, in their order; few, because each one widens all intervals."""
    latencies = (each for each in shown_in(View.COMPARISON) if open_loop or not each.is_from_scheduled)
    return (
        *(METRICS[f"{statistic}_{latency.key}"] for latency in latencies for statistic in _SHOWN_STATISTICS),
        *_SHARES,
        *(METRICS[name] for name in _SHOWN_RATES),
    )


# --- One run measured for a comparison: its figures, each with what its interval is made of


@dataclass(frozen=True, slots=True)
class Compared:
    """A run as a comparison takes it: every figure is the one of its summary."""

    manifest: Manifest
    measured: Measured
    population: Population
    gaps: Floats | Ascending  # of the ok requests, ascending, in seconds
    lost: int  # requests without a record
    unsent: int  # requests that were due and never sent
    together: float = 1.0  # requests under way together, on average over the window
    apis: tuple[str, ...] = ()  # the endpoints of its requests
    unserved: str = ""  # that the server stood still, or users hung, for more than a tenth

    @property
    def c(self) -> Columns:
        return self.measured.c

    @property
    def is_part(self) -> bool:
        """Whether there was more of the run: requests without a record, or load that it did not come to."""
        return bool(self.lost) or not self.manifest.complete or self.manifest.cut_short

    @property
    def window(self) -> Window:
        return self.measured.window

    @property
    def rounds(self) -> float:
        """How many times as many requests there were as were under way together: see :mod:`blocks`."""
        return len(self.population.all) / max(1.0, self.together)

    @property
    def users(self) -> float:
        """Those of a closed loop; of an open one the requests under way together."""
        asked = self.manifest.options.get("num_users")
        if self.manifest.open_loop or not isinstance(asked, int) or asked < self.together:
            return self.together
        return float(asked)

    def edge_of(self, name: str) -> float:
        """The error of a rate by the rounds that the ends of the window cut, as a share of it.

        Users in step end together, so that a window has one round more or less of them, depending on where
        it begins: evenly distributed, 1 / √12 of a round at each figure. Output tokens come all the time.
        """
        if self.manifest.open_loop or name in ("output_tps", "output_cps"):
            return 0.0
        ended = float(self.measured.credits.finished.sum())
        return self.users / max(1.0, ended) / math.sqrt(12)

    def client(self) -> ClientFacts:
        """The verdict on the client, see :mod:`llm_locust.figures.client`."""
        values = {metric: self.latencies(metric) for metric in ("itl", "ttft", "e2el")}
        medians_ms = {m: percentile(v, 50.0) * 1e3 if len(v) else None for m, v in values.items()}
        scale = Scale.of(self.window, medians_ms)
        return client_validity(self.c, self.population.judged, self.manifest, scale, self.measured.judgement)

    def latencies(self, latency: str) -> Floats | Ascending:
        """The defined values of the ok requests in seconds, ascending."""
        if latency not in FORMULAS:
            return self.gaps
        return ordered(self.measured.values[latency][self.population.ok])

    def why_open(self, metric: Metric) -> str | None:
        """Why there is no estimate though there are samples; None where there are none."""
        if metric.kind is not MetricKind.LATENCY or not len(self.latencies(metric.latency)):
            return None
        row = LATENCY[metric.latency]
        if row.end is None:
            return None
        stuck = self.measured.stuck.among(np.arange(len(self.c)))
        given_up = len(self.population.given_up(self.c)) + len(stuck)
        causes = [f"{given_up} requests were given up before they ended"] if given_up else []
        if self.unsent and row.is_from_scheduled:
            causes.append(f"{self.unsent} were never sent")
        return " and ".join(causes) or None

    @property
    def error_rate(self) -> float:
        """The failed share of the judged requests, 0 without any."""
        return len(self.population.failed) / max(1, len(self.population.judged))

    def estimate(self, metric: Metric, *, adjusted: bool = False) -> Estimate | None:
        """The figure in its unit (seconds for a latency); None where the run has no sample of it.

        Args:
            adjusted: of a percentile of a latency, count each failed request as +∞.
        """
        if metric.kind is MetricKind.LATENCY:
            return _latency(self, metric.latency, [metric], adjusted)[0]
        if metric.name == "on_time":
            return _on_time(self)
        if metric.kind is MetricKind.SHARE:
            return _share(self, metric)
        return _rate(self, metric)

    def estimates(self, metrics: Iterable[Metric]) -> dict[str, Estimate | None]:
        """The figures of many metrics by name, those of one latency from one look at its samples."""
        found = dict[str, Estimate | None]()
        for latency, group in groupby(metrics, key=lambda metric: metric.latency):
            theirs = [*group]
            if latency:
                them = _latency(self, latency, theirs, adjusted=False)
            else:
                them = [self.estimate(metric) for metric in theirs]
            found |= zip((metric.name for metric in theirs), them, strict=True)
        return found


def measure_for_comparison(requests: Requests, manifest: Manifest, question: Question) -> Compared:
    """Read the requests of a run, part by part (raises ValueError as :func:`measure` does)."""
    requests = without_first_tries(requests)
    measured = measure(requests, manifest, question)
    lost = manifest.requests_lost(len(requests.stored))
    population = measured.population(np.arange(len(measured.c)))
    gaps = measured.gaps.ascending()
    unsent = manifest.requests_unsent(question.warmup_of(manifest))
    apis = {name for batch in requests.parts(["endpoint"]) for name in batch.labels("endpoint").names}
    together = _together(measured)
    is_whole = question.where is None and not (manifest.is_sweep or manifest.arms)
    unserved = _unserved(requests, measured, manifest) if is_whole else ""
    return Compared(
        manifest, measured, population, gaps, lost, unsent, together, tuple(sorted(apis)), unserved
    )


def _unserved(requests: Requests, m: Measured, manifest: Manifest) -> str:
    """That the server stood still, or users or requests hung, for longer than a run may; empty if not."""
    window_s, scheduled = m.window.seconds, len(m.population(np.arange(len(m.c))).all)
    silences = Silences.of(m.c, m.holes, m.window, m.judgement)
    still_s = float(silences.busy_s[silences.still].sum())
    if scheduled and window_s >= 1 and (still := too_still(still_s, window_s)):
        return still
    if manifest.open_loop:
        n = len(silences.hung())
        return f"{n:,} of {scheduled:,} requests hung" if n > MOST_HUNG * scheduled else ""
    times = user_time(requests, m, silences)
    return times.hung_text if times is not None and times.have_hung(window_s) else ""


def _together(m: Measured) -> float:
    spans = Spans.of(m.c)
    means = [
        (float(spans.means(np.array([start_s, end_s]))[0]), end_s - start_s)
        for start_s, end_s in ((each.start_s(m.c), each.end_s(m.c)) for each in m.window.spans)
        if end_s > start_s
    ]
    seconds = sum(length for _, length in means)
    return max(0.0, sum(mean * length for mean, length in means) / seconds) if seconds else 0.0


def _latency(run: Compared, latency: str, metrics: Sequence[Metric], adjusted: bool) -> list[Estimate | None]:
    """Each None also where requests that were given up leave the figure open."""
    found = durations_of(
        run.measured, run.population, latency, adjusted=adjusted, unsent=run.unsent, gaps=run.gaps
    )
    if not len(found.observed):
        return [None] * len(metrics)
    return figures_of(found, [PERCENTILES.get(metric.statistic) for metric in metrics], run.rounds)


def figures_of(found: Durations, percents: Sequence[float | None], rounds: float) -> list[Estimate | None]:
    """The mean (None of ``percents``) and percentiles of durations in a run of so many rounds."""
    mean, std = found.moments()
    values = [mean if p is None else found.quantile(p / 100) for p in percents]
    span = _span(found, rounds)
    worth, of_values, noises = None, list[EffectiveSize | None]([None] * len(values)), list[Noise | None]()
    if found.course is not None:
        course, median = Remembered(found.course), found.quantile(0.5)
        worth, of_values = effective_sizes(course, mean, std, median, values)
        blocks = blocks_of(int(np.count_nonzero(course.counts)), rounds)
        if blocks is not None:
            in_blocks = InBlocks(course, blocks)
            noises = _noises(course, in_blocks, (mean, std, median), values, rounds)
    noises = noises or [None] * (1 + len(values))
    made = [
        Average(value, worth, noises[0], span)
        if percent is None
        else Percentile(value, percent, found, of_value, noise, span)
        for value, percent, of_value, noise in zip(values, percents, of_values, noises[1:], strict=True)
    ]
    return [None if math.isnan(each.value) else each for each in made]


def _noises(
    course: CellSums,
    in_blocks: CellSums,
    level: tuple[float, float, float],
    values: Sequence[float],
    rounds: float,
) -> list[Noise | None]:
    """The noise of the mean, and of each value, by cells and by blocks."""
    mean, std, median = level
    (of_mean, of), (mean_in_blocks, of_blocks) = (
        effective_sizes(each, mean, std, median, [*values, median]) for each in (course, in_blocks)
    )
    known = [each.n_eff for each in (of[-1] or of_mean, of_blocks[-1] or mean_in_blocks) if each is not None]
    pairs = zip((of_mean, *of[:-1]), (mean_in_blocks, *of_blocks[:-1]), strict=True)
    return [None if a is None or b is None else Noise(a, b, min(known), rounds) for a, b in pairs]


def _span(found: Durations, rounds: float) -> Extremes:
    """Requests that failed or were given up may have lasted for ever."""
    lowest = [float(each[0]) for each in (found.observed, found.censored) if len(each)]
    is_open = found.infinite or len(found.censored)
    highest = math.inf if is_open else float(found.observed[len(found.observed) - 1])
    return Extremes(min(lowest), highest, min(rounds, len(found.observed) + found.infinite))


def _on_time(run: Compared) -> Estimate | None:
    if run.measured.on_time is None:
        return None
    shares = run.measured.on_time[run.population.ok]
    course = Observed(order_cells(run.c, run.population.ok), shares)
    found = replace(Durations.of(shares), course=course)
    return figures_of(found, [None], run.rounds)[0] if len(found.observed) else None


def _share(run: Compared, metric: Metric) -> Estimate | None:
    """A request without a record held no limit; it is spread over all cells: nobody knows its place."""
    counted = counted_in_share(run, metric)
    missing = 0
    if metric.name != "error_rate":
        missing = run.lost + run.unsent
        missing += len(run.measured.stuck.among(np.arange(len(run.c))))
    if counted is None or not len(counted[0]) + missing:
        return None
    judged, held = counted
    order = order_cells(run.c, judged)
    counts = np.diff(order.bounds).astype(np.float64)
    counts += missing / max(1, len(counts))
    hits = order.sums(order.sorted(held))
    n = len(judged) + missing
    blocks = blocks_of(len(counts), run.rounds)
    in_blocks = None if blocks is None else share_size(merged(hits, blocks), merged(counts, blocks))
    return Share(float(held.sum()) / n, n, share_size(hits, counts), in_blocks)


def counted_in_share(run: Compared, metric: Metric) -> tuple[Rows, Mask] | None:
    """The recorded requests that a share is of, and which of them it counts; None where there is none."""
    hits = _hits(run, metric)
    judged = _denominator(run, metric)
    return None if hits is None else (judged, hits[judged])


def _denominator(run: Compared, metric: Metric) -> Rows:
    """The recorded requests that the share is of."""
    judgement = run.measured.judgement
    if metric.name == "error_rate" or judgement is None:
        return run.population.judged
    scheduled = run.population.all
    if metric.name == "goodput":
        return scheduled[judgement.judged[scheduled]]
    if metric.limit not in judgement.limited:
        return scheduled
    mask = judgement.limited[metric.limit] & ~judgement.unjudged[metric.limit]
    return scheduled[mask[scheduled]]


def _hits(run: Compared, metric: Metric) -> Mask | None:
    """Of all requests, those that the share counts."""
    judgement = run.measured.judgement
    if metric.name == "error_rate":
        return ~run.c.ok
    if judgement is None:
        return None
    return judgement.good if metric.name == "goodput" else judgement.held.get(metric.limit)


def _rate(run: Compared, metric: Metric) -> Estimate | None:
    if not run.window.seconds > 0 or not len(run.c):
        return None
    value = _rate_per_s(run, metric.name)
    if value is None:
        return None
    return rate_of(value, *_per_round(run, metric.name), run.edge_of(metric.name))


def rate_of(value: float, amounts: Floats, seconds: Floats, edge: float) -> Rate:
    """A rate of which each round gave ``amounts`` in ``seconds``.

    Args:
        edge: the error that the cut rounds at both ends of the window make, as a share of the rate.
    """
    total, blocks = float(amounts.sum()), blocks_of(len(amounts), len(amounts))
    if not (value > 0 and total > 0 and float(seconds.sum()) > 0):
        return Rate(value, None)
    scale = value / (total / float(seconds.sum()))
    cells = [(amounts, seconds)]
    if blocks is not None:
        cells.append((merged(amounts, blocks), merged(seconds, blocks)))
    errors = [standard_error(*each) for each in cells]
    known = [error and replace(error, value=error.value * scale) for error in errors]
    return Rate(value, known[0], None if blocks is None else known[1], len(amounts), edge * value)


def _rate_per_s(run: Compared, name: str) -> float | None:
    """As :func:`~llm_locust.metrics.requests.rates.throughput` and ``goodput`` have it."""
    credits, seconds = run.measured.credits, run.window.seconds
    credited = {
        "input_tps": credits.input_tokens,
        "output_tps": credits.output_tokens,
        "output_cps": credits.output_chars,
    }
    if name in credited:
        return rate_per_s(credited[name], credits.finished, seconds)
    if name == "total_tps":
        inputs, outputs = (_rate_per_s(run, each) for each in ("input_tps", "output_tps"))
        return None if inputs is None or outputs is None else inputs + outputs
    if name == "inputs_per_s":
        return inputs_per_s(credits, np.arange(len(run.c)))
    if name == "goodput_rps":
        rate = good_rates(run.measured.judgement, credits, np.arange(len(run.c)))["requests_per_s"]
        return None if rate is None else float(rate)
    return float(credits.finished.sum()) / seconds


def _per_round(run: Compared, name: str) -> tuple[Floats, Floats]:
    """What the answers of each round gave to a rate, and the seconds since the round before ended.

    A round is as many ends as there are users, or requests under way together: the users of a closed loop
    often move in step, and in equal times between two of their steps come all answers or none. Of a long run
    one is several of these, so that there are at most :data:`CELLS`.
    """
    credits, judgement = run.measured.credits, run.measured.judgement
    rows = np.flatnonzero(credits.finished)
    if name == "goodput_rps" and judgement is not None:
        given = judgement.good.astype(np.float64)
    else:
        given = {
            "output_tps": credits.output_tokens,
            "output_cps": credits.output_chars,
            "input_tps": credits.input_tokens,
            "total_tps": credits.input_tokens + credits.output_tokens,
            "inputs_per_s": credits.inputs,
        }.get(name, np.ones(len(run.c)))
    rows = rows[np.argsort(run.c.ended_s[rows], kind="stable")]
    size = max(1, round(run.users))
    size *= max(1, math.ceil((len(rows) - 1) / size / CELLS))
    # The first end only begins the first round: what was given before it took nobody knows how long.
    edges = np.arange(0, len(rows), size)
    if len(edges) < 2:
        return np.empty(0), np.empty(0)
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(given[rows]))])[edges + 1]
    return np.diff(sums), np.diff(_seconds_of(run, run.c.ended_s[rows][edges]))


def _seconds_of(run: Compared, times_s: Floats) -> Floats:
    """Seconds of the window before each time, without its gaps."""
    found = np.zeros(len(times_s))
    for span in run.window.spans:
        start_s = span.start_s(run.c)
        found += np.clip(times_s, start_s, span.end_s(run.c)) - start_s
    return found


# --- Labels of the figures that runs and arms are compared by


_OTHERS = {
    "goodput": "Goodput ratio",
    "on_time": "Tokens on time",
    "error_rate": "Error rate",
    "rps": "Requests/s",
    "output_tps": "Output tokens/s",
    "output_cps": "Output chars/s",
    "input_tps": "Input tokens/s",
    "total_tps": "Tokens/s",
    "goodput_rps": "Good requests/s",
    "inputs_per_s": "Inputs/s",
    "images_per_s": "Images/s",
}


def figure_label(metric: Metric, marked: bool = False) -> str:
    """``TTFT p99``; ``marked`` puts † behind figures of tokens."""
    if metric.kind is MetricKind.LATENCY:
        text = f"{LATENCY[metric.latency].short} {metric.statistic.replace('_', '.')}"
    else:
        text = f"Held {metric.limit}" if metric.limit else _OTHERS[metric.name]
    return text + (" †" if marked and metric.of_tokens else "")

"""Tables of a run for other programs, as CSV files beside its report."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.course import TimeAxis, percentiles_in
from llm_locust.figures.curve import METRIC, STATISTIC, Usl, UslFigures
from llm_locust.figures.parts import PartFigures
from llm_locust.figures.stages import Repeats, Stage
from llm_locust.figures.summary import Summary
from llm_locust.metrics.catalogue import FORMULAS, View, shown_in
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part, Whole, pieces
from llm_locust.metrics.requests.rates import Spans, prefilled_s
from llm_locust.metrics.stats.censoring import PERCENTILES

# --- CSV text of rows


Cells = dict[str, str | float | None]


def csv_text(rows: Sequence[Cells]) -> str:
    """The rows under a head line with the columns of all. What a row lacks, and None, is an empty cell."""
    heads = dict.fromkeys(head for row in rows for head in row)
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(heads), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


# --- ``arms.csv``: the differences between arms, with each end of their intervals


_HEADS = (
    *("base_arm", "new_arm", "metric", "unit", "base", "new", "difference", "difference_low"),
    *("difference_high", "change", "change_low", "change_high", "confidence", "verdict"),
)


def arms_csv(summary: Summary) -> str | None:
    """A line for each figure of each arm but the first; None in a run without arms. Undefined is empty."""
    if not summary.arms:
        return None
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(_HEADS)
    for arm in summary.arms:
        for row in arm.against.rows if arm.against else ():
            assert arm.against is not None
            writer.writerow(
                (
                    *(arm.against.arm, arm.name, row.metric, row.unit, row.base, row.new, row.difference),
                    *(row.difference_interval or (None, None)),
                    row.change,
                    *(row.change_interval or (None, None)),
                    *(arm.against.confidence, row.verdict),
                )
            )
    return sink.getvalue()


# --- ``curve.csv``: what there was at each load of a sweep, with the knee and the law of its throughput


def curve_csv(summary: Summary) -> str | None:
    """A row for each stage that has figures, by lengths, load and repeat; None in a run without a curve.

    ``is_result`` says whether a stage is in the knee and in the law. ``usl_requests_per_s`` is the law's
    throughput at the stage's ``concurrency_mean``, beside the measured ``requests_per_s``; it is empty below
    one request in flight, where there is no law. ``knee`` and its interval are loads, the same in each row.
    """
    curves = {each.lengths: each.curve for each in summary.curves or ()}
    if summary.curve is not None:
        curves[""] = summary.curve
    if not curves:
        return None
    rows: list[Cells] = []
    for lengths, curve in curves.items():
        knee = _figure("knee", curve.knee.load, curve.knee.ci95) if curve.knee else _figure("knee", None)
        law = _law(curve.usl)
        stages = [stage for stage in summary.stages or () if stage.figures and stage.pair == lengths]
        stages.sort(key=lambda stage: (stage.asked, stage.repeat))
        for stage in stages:
            names = ("kind", "asked", "offered", "repeat", "is_result", "saturated")
            of_stage: Cells = {"stage": stage.number, "lengths": stage.pair}
            rows.append(
                of_stage | {n: getattr(stage, n) for n in names} | _figures(stage.figures, law) | knee
            )
    return csv_text(rows)


def _figures(part: PartFigures | None, law: Callable[[float | None], float | None]) -> Cells:
    assert part is not None
    latency, rates, goodput = part.latency_ms[METRIC], part.throughput, part.goodput
    in_flight = rates.concurrency_mean
    return {
        **_figure(f"{METRIC}_{STATISTIC}_ms", latency.figure(STATISTIC), latency.intervals().get(STATISTIC)),
        "concurrency_mean": in_flight,
        **_figure("requests_per_s", rates.requests_per_s, rates.intervals().get("requests_per_s")),
        "usl_requests_per_s": law(in_flight),
        "output_tokens_per_s": rates.output_tokens_per_s,
        "inputs_per_s": rates.inputs_per_s,
        **_figure("goodput", goodput.ratio, goodput.intervals().get("ratio")),
        "good_requests_per_s": goodput.requests_per_s,
    }


def _figure(name: str, value: float | None, ends: Sequence[float | None] | None = None) -> Cells:
    low, high = ends or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _law(usl: UslFigures | None) -> Callable[[float | None], float | None]:
    """The law's throughput at a number of requests in flight; None where there is none."""
    values = [each.value for each in (usl.gamma, usl.alpha, usl.beta)] if usl else [None]
    if None in values:
        return lambda _: None
    law = Usl(*(float(value or 0) for value in values))
    return lambda n: None if n is None or n < 1 else float(law.at(np.array([n]))[0])


# --- ``repeats.csv``: each load that was measured more than once, with its figures over the repeats


def repeats_csv(summary: Summary) -> str | None:
    """A row a load, with the mean of each figure and the ends of its interval; None without repeats."""
    if not summary.repeats:
        return None
    return csv_text([_row(load) for load in summary.repeats])


def _row(load: Repeats) -> Cells:
    found: Cells = {
        "kind": load.kind,
        "asked": load.asked,
        "lengths": load.pair,
        "repeats": len(load.stages),
        "results": load.results,
    }
    for name, over in load.figures.items():
        found |= _figure(name, over.mean, over.ci95)
    return found


# --- ``stages.csv``: the table of stages with a column for each figure and each end of its interval


_PREFIX = ("asked", "tokens", "possible", "achieved", "source")
_PLACES = ("p50", "p90", "p99")
_METRICS = tuple(metric.key for metric in shown_in(View.GROUPS))


def stages_csv(stages: Iterable[Stage] | None) -> str | None:
    """The stages as CSV text with a head line; None without any. Undefined is an empty cell."""
    rows = [_stages_csv_row(stage) for stage in stages or ()]
    return csv_text(rows) if rows else None


def _stages_csv_row(stage: Stage) -> Cells:
    window = stage.window
    found: Cells = {
        "stage": stage.number,
        "kind": stage.kind,
        "asked": stage.asked,
        "offered": stage.offered,
        "repeat": stage.repeat,
        "lengths": stage.pair,
        "input_tokens_p50": None if stage.lengths is None else stage.lengths.input_tokens_p50,
        "output_tokens_p50": None if stage.lengths is None else stage.lengths.output_tokens_p50,
        **{f"prefix_{name}": getattr(stage.prefix, name) for name in _PREFIX if stage.prefix is not None},
        "repeated_as": stage.repeated_as,
        "is_result": stage.is_result,
        "steady": stage.steady,
        "all_failed": stage.all_failed,
        "saturated": stage.saturated,
        "client": stage.client,
        "reasons": "; ".join(stage.reasons),
        "ended_early": None if stage.until is None else stage.until.is_early,
        "start_s": None if window is None else window.start_s,
        "seconds": None if window is None else window.seconds,
    }
    return found | ({} if stage.figures is None else _stages_csv_figures(stage.figures))


def _stages_csv_figures(part: PartFigures) -> Cells:
    found: Cells = {
        "requests": part.requests.scheduled,
        "ok": part.requests.ok,
        "failed": part.requests.failed,
        "error_rate": part.requests.error_rate,
        "requests_per_s": part.throughput.requests_per_s,
        "output_tokens_per_s": part.throughput.output_tokens_per_s,
        "inputs_per_s": part.throughput.inputs_per_s,
        **_figure("goodput", part.goodput.ratio, part.goodput.intervals().get("ratio")),
        "good_requests_per_s": part.goodput.requests_per_s,
    }
    for metric in _METRICS:
        for place in _PLACES:
            stats = part.latency_ms[metric]
            found |= _figure(f"{metric}_{place}_ms", stats.figure(place), stats.intervals().get(place))
    return found


# --- ``timeseries.csv``: the run second by second, one row each.
#
# Counts and sums are of what happened inside the second; latencies are percentiles of the requests that
# ended ``ok`` in it, and are empty where there are none.


#: Room for a soak of a week; a clock that is years off must not make a row for each second of them.
MOST_SECONDS = 8 * 86_400

_SHOWN = {key: PERCENTILES[key] for key in ("p50", "p99")}

_ENDS = ("started_ns", "ended_ns")

#: Columns that add up over parts of the requests.
_SUMS = (
    "started",
    "ok",
    "failed",
    "cancelled",
    "input_tokens",
    "output_tokens",
    "inputs",
    "images",
    "concurrency",
)


def timeseries_csv(requests: Requests, manifest: Manifest) -> str:
    """The whole run, warm-up and drain too, but for what was dropped, as CSV text with a head line."""
    table = timeseries(requests, manifest.started_ns)
    if manifest.kept_from_ns is not None:
        kept_from_s = math.ceil((manifest.kept_from_ns - manifest.started_ns) * 1e-9)
        table = table.filter(pc.greater_equal(table.column("second"), kept_from_s))
    sink = io.BytesIO()
    # The head apart: before pyarrow 22 its names are always quoted.
    pa_csv.write_csv(table, sink, pa_csv.WriteOptions(include_header=False, quoting_style="none"))
    return ",".join(table.column_names) + "\n" + sink.getvalue().decode()


def timeseries(requests: Requests, origin_ns: int) -> pa.Table:
    """One row for each second [k, k + 1) after ``origin_ns``, to the one of the last end.

    ``time`` is the second's start. ``input_tokens``, ``inputs`` and ``images`` are credited as in
    :func:`~llm_locust.metrics.requests.rates.prefilled_s`, ``output_tokens`` evenly to a request's token
    events; an answer without events counts as a whole at its end. Rows below 0 are of workers whose clock is
    behind; what lies beyond :data:`MOST_SECONDS` rows is left out.
    """
    axis = _axis(requests, origin_ns)
    seconds = axis.edges_s[:-1].astype(np.int64)
    sums = {name: np.zeros(axis.bins) for name in _SUMS}
    latencies = Whole(_Latencies, len(requests))
    for batch in requests.parts(PART_COLUMNS):
        part = Part.from_batch(batch, origin_ns)
        for name, amounts in _part_sums(part, axis).items():
            sums[name] += amounts
        latencies.add(_Latencies.of(part, axis), len(part))
    return pa.table(
        {
            "second": pa.array(seconds),
            "time": pa.array(origin_ns // 1_000_000 + 1000 * seconds, pa.timestamp("ms", "UTC")),
            **{name: _rounded(amounts) for name, amounts in sums.items()},
            **{name: _rounded(values) for name, values in _percentiles(latencies.value(), axis).items()},
        }
    )


def _part_sums(c: Part, axis: TimeAxis) -> dict[str, Floats]:
    """What a part of the requests adds to each second."""
    ended = {"ok": c.ok, "failed": ~c.ok & ~c.cancelled, "cancelled": c.cancelled}
    return {
        "started": axis.sums(c.started_s),
        **{name: axis.sums(c.ended_s[rows]) for name, rows in ended.items()},
        "input_tokens": axis.sums(prefilled_s(c), c.input_tokens),
        "output_tokens": _output_tokens(c, axis),
        "inputs": axis.sums(prefilled_s(c), c.inputs),
        "images": axis.sums(prefilled_s(c), c.images),
        # The mean over a second of all requests is the sum of those of its parts.
        "concurrency": Spans.of(c).means(axis.edges_s) if axis.bins else np.empty(0),
    }


@dataclass(frozen=True, slots=True)
class _Latencies:
    """The latencies of the requests that ended ok, by the row of the second; -1 for the others."""

    second: NDArray[np.int32]
    values: dict[str, Floats]

    @classmethod
    def of(cls, c: Part, axis: TimeAxis) -> "_Latencies":
        second = np.where(c.ok, axis.index(c.ended_s), -1).astype(np.int32)
        return cls(second, {metric.key: FORMULAS[metric.key](c) for metric in shown_in(View.OVER_TIME)})


def _axis(requests: Requests, origin_ns: int) -> TimeAxis:
    """The whole seconds that the run touches."""
    if not len(requests):
        return TimeAxis(0.0, 1.0, 0)
    firsts, lasts = [], []
    for batch in requests.parts(_ENDS):
        started_s, ended_s = (batch.seconds(column, origin_ns) for column in _ENDS)
        firsts.append(np.min(started_s, initial=0.0))
        lasts.append(np.max([started_s, ended_s], initial=-np.inf))
    first, last = math.floor(min(firsts)), math.floor(max(lasts))
    return TimeAxis(float(first), 1.0, min(last - first + 1, MOST_SECONDS))


def _output_tokens(c: Part, axis: TimeAxis) -> Floats:
    whole = c.events == 0
    total = axis.sums(c.ended_s[whole], c.output_tokens[whole])
    streamed = np.flatnonzero((c.events > 0) & ~np.isnan(c.sent_s))
    for rows, arrivals in pieces(c.arrivals, streamed):
        counts = np.diff(arrivals.offsets)
        times_s = np.repeat(c.sent_s[rows], counts) + arrivals.values * 1e-9
        total += axis.sums(times_s, np.repeat(c.output_tokens[rows] / counts, counts))
    return total


def _percentiles(found: _Latencies, axis: TimeAxis) -> dict[str, Floats]:
    """``<metric>_<percentile>_ms`` of the requests that ended ok in each second; NaN without any."""
    figures = {
        metric: percentiles_in(axis, found.second, values, _SHOWN) for metric, values in found.values.items()
    }
    return {f"{metric}_{key}_ms": figures[metric][key] * 1e3 for metric in figures for key in _SHOWN}


def _rounded(values: NDArray[np.float64]) -> pa.Array:
    """Microseconds and thousandths are all that the records can tell; NaN is an empty cell."""
    rounded = np.round(values, 3)
    finite = rounded[~np.isnan(rounded)]
    if len(finite) == len(rounded) and (finite == np.floor(finite)).all():
        return pa.array(rounded.astype(np.int64))
    return pa.array(rounded, from_pandas=True)

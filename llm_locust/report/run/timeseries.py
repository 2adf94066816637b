"""``timeseries.csv``: the run second by second, one row each.

Counts and sums are of what happened inside the second; latencies are percentiles of the requests
that ended ``ok`` in it, and are empty where there are none.
"""

import io
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.catalogue import FORMULAS, shown_in
from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.charts.over_time import percentiles_in
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.ragged import pieces
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.requests.throughput import prefilled_s
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.metrics.whole import Whole

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
    :func:`~llm_locust.metrics.requests.throughput.prefilled_s`, ``output_tokens`` evenly to a request's token
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
    known = rounded[~np.isnan(rounded)]
    if len(known) == len(rounded) and (known == np.floor(known)).all():
        return pa.array(rounded.astype(np.int64))
    return pa.array(rounded, from_pandas=True)

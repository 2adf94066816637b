"""The course of a run in charts: percentiles, rates and the servers' figures in spans of its time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.record import Outcome
from llm_locust.figures.server_metrics import in_parts, one_per_gpu, together
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows
from llm_locust.metrics.requests.rates import Spans, prefilled_s
from llm_locust.metrics.server_roles import DECODE, PREFILL, ROLES, of_role, roles_of
from llm_locust.metrics.server_series import MetricSeries, SeriesKey, ServerSeries, Targets
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.window import Window

# --- The run cut into equal spans of time, few enough to be drawn and wide enough to hold requests


MOST_BINS = 240
_FEWEST_BINS = 20

#: A percentile of fewer requests than these, on average, would be drawn noise.
_REQUESTS_A_BIN = 30

_WIDTHS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """``bins`` spans of ``width_s`` from ``start_s`` on, which is on the axis of the columns (seconds)."""

    start_s: float
    width_s: float
    bins: int

    @classmethod
    def of(cls, c: Columns, started_s: float, kept_from_s: float | None = None) -> "TimeAxis":
        """From the run's start (or the first scheduled request, where that is earlier) to the last end.

        The whole run: warm-up and drain too, but for what was dropped, which ended before ``kept_from_s``. At
        most :data:`MOST_BINS`, of a round width.
        """
        if not len(c):
            return cls(started_s, 1.0, 1)
        start_s = min(started_s, float(c.scheduled_s.min())) if kept_from_s is None else kept_from_s
        span_s = float(c.ended_s.max()) - start_s
        bins = min(max(len(c) // _REQUESTS_A_BIN, _FEWEST_BINS), MOST_BINS)
        width_s = _round_width(span_s / bins)
        return cls(start_s, width_s, max(1, math.floor(span_s / width_s) + 1))

    @property
    def edges_s(self) -> Floats:
        """Shape (bins + 1,), on the axis of the columns."""
        edges: Floats = self.start_s + self.width_s * np.arange(self.bins + 1, dtype=np.float64)
        return edges

    @property
    def middles_s(self) -> Floats:
        """The middle of each bin in seconds after the axis' own start."""
        middles: Floats = self.width_s * (np.arange(self.bins, dtype=np.float64) + 0.5)
        return middles

    def after_start_s(self, at_s: float) -> float:
        return at_s - self.start_s

    def index(self, times_s: Floats) -> Rows:
        """The bin of each time; -1 for one that is not known or not on the axis."""
        place = times_s - self.start_s
        place /= self.width_s
        np.floor(place, out=place)
        place[~((place >= 0) & (place < self.bins))] = -1
        return place.astype(np.int64)

    def sums(self, times_s: Floats, amounts: Floats | None = None) -> Floats:
        """The sum of the known ``amounts`` (the number of times, without them) in each bin."""
        weights = None if amounts is None else np.nan_to_num(amounts)
        places = self.index(times_s) + 1
        return np.bincount(places, weights, minlength=self.bins + 1)[1:].astype(np.float64)


def _round_width(least_s: float) -> float:
    for width_s in _WIDTHS_S:
        if width_s >= least_s:
            return width_s
    return 3600.0 * math.ceil(least_s / 3600)


# --- Percentiles, rates and failures in each span of a :class:`TimeAxis`


Integers = NDArray[np.integer[Any]]

PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

_NO_FAILURES = (Outcome.OK, Outcome.CANCELLED)


def percentiles_over_time(axis: TimeAxis, c: Columns, values_s: Floats) -> dict[str, Floats]:
    """``n`` and :data:`PLACES` (seconds) of the requests that ended ok in each bin; NaN without any."""
    return percentiles_in(axis, np.where(c.ok, axis.index(c.ended_s), -1), values_s, PLACES)


def percentiles_in(
    axis: TimeAxis, bins: Integers, values: Floats, places: Mapping[str, float]
) -> dict[str, Floats]:
    """``n`` and ``places`` (key to percent) of the defined values in each bin; NaN without any.

    Args:
        bins: that of each value, -1 for one that is in none.
    """
    bins = np.where(np.isnan(values), -1, bins)
    order = np.argsort(bins, kind="stable")
    bounds = np.searchsorted(bins, np.arange(axis.bins + 1), sorter=order)
    figures = {key: np.full(axis.bins, np.nan) for key in places}
    for i in np.flatnonzero(np.diff(bounds)).tolist():
        ascending = ordered(values[order[bounds[i] : bounds[i + 1]]])
        for key, percent in places.items():
            figures[key][i] = percentile(ascending, percent)
    return {"n": np.diff(bounds).astype(np.float64), **figures}


def rates_over_time(axis: TimeAxis, c: Columns, output_tokens: Floats) -> dict[str, Floats]:
    """Per second of each bin: requests ``sent``, ended ``ok`` and ``failed``, tokens in and out.

    Input tokens, and ``inputs`` and ``images`` of requests that have some, are credited as in
    :func:`~llm_locust.metrics.requests.rates.prefilled_s`.
    ``concurrency`` is the time-weighted mean of requests between sent and ended.

    Args:
        output_tokens: what arrived in each bin.
    """
    failed = ~c.ok & ~c.cancelled
    sums = {
        "sent": axis.sums(c.sent_s),
        "ok": axis.sums(c.ended_s[c.ok]),
        "failed": axis.sums(c.ended_s[failed]),
        "output_tokens": output_tokens,
        "input_tokens": axis.sums(prefilled_s(c), c.input_tokens),
        "inputs": axis.sums(prefilled_s(c), c.inputs),
        "images": axis.sums(prefilled_s(c), c.images),
    }
    rates = {key: amounts / axis.width_s for key, amounts in sums.items()}
    return rates | {"concurrency": Spans.of(c).means(axis.edges_s)}


def failures_over_time(axis: TimeAxis, c: Columns) -> dict[str, Floats]:
    """The number of requests that failed in each bin, by outcome; only outcomes that there are."""
    found: dict[str, Floats] = {}
    for code, outcome in enumerate(OUTCOMES):
        if outcome not in _NO_FAILURES and (of_it := c.outcome == code).any():
            found[outcome.value] = axis.sums(c.ended_s[of_it])
    return found


# --- What servers' counters grew by, in the spans of a chart


#: So much of a part may lack at its edge for its increase to be that of the part.
_EDGE = 0.05


def increases(series: ServerSeries, name: str, of: Targets = None) -> Floats:
    """Of a counter in each part, added up; NaN where it was not watched all of the part."""
    total = np.zeros(len(series.edges_s) - 1)
    watched = np.zeros(len(total), np.bool_)
    slack_s = _EDGE * float(series.edges_s[-1]) / len(total)
    for each in series.named(name, of).values():
        total += each.amounts
        for first_s, last_s in each.watched_s:
            begun = first_s <= series.edges_s[:-1] + slack_s
            watched |= begun & (last_s >= series.edges_s[1:] - slack_s)
    return np.where(watched, total, np.nan)


def over(amounts: Floats, by: Floats) -> Floats:
    """A ratio in each span; NaN where ``by`` is 0 or unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(by > 0, amounts / by, np.nan)


# --- What prefill and decode servers said of themselves, in the spans of the client's time axis


@dataclass(frozen=True, slots=True)
class RoleCurves:
    """Curves of what is known of a role at any time; one value a span, NaN where nothing is known.

    ``waiting`` are the requests in the queues of all servers of a role. ``parts_s`` are means of the requests
    that ended in each span, which follow each other up to the first token, and the client's mean TTFT.
    """

    waiting: Mapping[str, Floats]
    parts_s: Mapping[str, Floats]


def role_curves(series: ServerSeries, client_ttft_s: Floats) -> RoleCurves | None:
    """None where no server has a role."""
    roles = roles_of(series)
    if not roles:
        return None
    of = {name: of_role(roles, name) for name in ROLES}
    parts = {
        "prefill server, queue": _mean(series, "queue_s", of[PREFILL]),
        "prefill server, whole request": _mean(series, "e2el_s", of[PREFILL]),
        "KV transfer": _mean(series, "kv_transfer_s"),
        "decode server, queue": _mean(series, "queue_s", of[DECODE]),
    }
    waiting = {f"{name} servers": in_parts(series, "waiting", of[name]) for name in ROLES}
    parts_s = _known(parts)
    return RoleCurves(_known(waiting), {"TTFT of the client": client_ttft_s} | parts_s if parts_s else {})


def _mean(series: ServerSeries, name: str, of: Targets = None) -> Floats:
    """The mean of a histogram's samples in each span."""
    return over(increases(series, f"{name}_sum", of), increases(series, f"{name}_count", of))


def _known(curves: Mapping[str, Floats]) -> dict[str, Floats]:
    return {label: curve for label, curve in curves.items() if not np.isnan(curve).all()}


# --- What servers said of themselves, in the spans of the client's :class:`TimeAxis`


#: Curves of one chart; of more servers the highest, the median and the lowest are told.
MOST_CURVES = 6

HIGHEST, MEDIAN, LOWEST = "highest", "median", "lowest"

Curves = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class ServerCurves:
    """One value a span of the axis, NaN where nothing is known.

    ``by_server`` has curves of each server (each GPU, of ``gpu_utilisation`` and ``power_w``) for each of its
    states that any of them tells, for ``prefix_hits``, the share of looked-up prompt tokens that were found
    in the cache, and for ``acceptance_length``, the tokens a step of speculative decoding. ``of_all`` has
    ``running`` and ``waiting`` of all together, and ``generation_tokens_per_s``. ``ttft_s`` is the mean TTFT
    of the first tokens of each span, by ``client`` and by ``servers``. ``failed`` counts, for each target
    that had any, the scrapes that gave nothing. ``by_role`` is of disaggregated serving.
    """

    by_server: Mapping[str, Curves]
    of_all: Curves
    ttft_s: Curves
    failed: Curves
    by_role: RoleCurves | None = None


_BY_ENGINE = ("running", "waiting", "kv_cache_usage")
_BY_GPU = ("gpu_utilisation", "power_w")


def axis_window(axis: TimeAxis, c: Columns) -> Window:
    """All of the axis, which is on that of ``c``."""
    start_ns, end_ns = (c.origin_ns + round(float(axis.edges_s[edge]) * 1e9) for edge in (0, -1))
    return Window(start_ns, end_ns, "the whole axis")


def server_curves(series: ServerSeries, axis: TimeAxis, c: Columns) -> ServerCurves | None:
    """None without any server.

    Args:
        series: in the window of :func:`axis_window`, in as many parts as the axis has.
    """
    if not series.by_key:
        return None
    by_server = {name: _states(series, name) for name in (*_BY_ENGINE, *_BY_GPU)}
    by_server["prefix_hits"] = _hits(series)
    by_server["acceptance_length"] = _acceptance(series)
    of_all = {name: in_parts(series, name) for name in ("running", "waiting")}
    of_all["generation_tokens_per_s"] = increases(series, "generation_tokens") / axis.width_s
    client_s = _client_ttft(axis, c)
    return ServerCurves(
        by_server={name: _few(curves) for name, curves in by_server.items() if _known(curves)},
        of_all=_known(of_all),
        ttft_s=_ttft(series, client_s),
        failed=_few_failed(_failed(series)),
        by_role=role_curves(series, client_s),
    )


def _states(series: ServerSeries, name: str) -> Curves:
    """Of each GPU once, wherever it was read; else of each engine."""
    found: dict[str, list[MetricSeries]] = {}
    for key, each in one_per_gpu(series.named(name)).items():
        found.setdefault(_label(series, key), []).append(each)
    return {label: together(name, some) for label, some in found.items()}


def _label(series: ServerSeries, key: SeriesKey) -> str:
    """The target, and which of its engines or GPUs where it has several."""
    if len(series.named(key.name, key.target)) == 1:
        return key.target
    engine, gpu = key.label("engine"), key.label("gpu", "device")
    if engine is not None:
        return f"{key.target} engine {engine}"
    return key.target if gpu is None else f"{key.target} GPU {gpu}"


def _hits(series: ServerSeries) -> Curves:
    curves: Curves = {}
    for target in series.targets:
        found, asked = (increases(series, f"prefix_cache_{name}", target) for name in ("hits", "queries"))
        curves[target] = over(found, asked)
        if np.isnan(curves[target]).all():
            curves[target] = in_parts(series, "prefix_cache_hit_rate", target)
    return curves


def _acceptance(series: ServerSeries) -> Curves:
    curves: Curves = {}
    for target in series.targets:
        accepted, drafts = (
            increases(series, f"spec_{name}", target) for name in ("accepted_tokens", "drafts")
        )
        curves[target] = 1 + over(accepted, drafts)
        if np.isnan(curves[target]).all():
            curves[target] = in_parts(series, "spec_accept_length", target)
    return curves


def _client_ttft(axis: TimeAxis, c: Columns) -> Floats:
    first = c.streamed & ~c.stepped & ~np.isnan(c.first_event_s)
    at_s = np.where(first, c.sent_s + c.first_event_s, np.nan)
    return over(axis.sums(at_s, np.where(first, c.first_event_s, 0.0)), axis.sums(at_s))


def _ttft(series: ServerSeries, client_s: Floats) -> Curves:
    servers = over(increases(series, "ttft_s_sum"), increases(series, "ttft_s_count"))
    return {"client": client_s, "servers": servers} if not np.isnan(servers).all() else {}


def _failed(series: ServerSeries) -> Curves:
    failed = {key.target: each.counts - each.amounts for key, each in series.named("up").items()}
    return {target: counts for target, counts in failed.items() if counts.any()}


def _few_failed(failed: Curves) -> Curves:
    """Those that failed most often, and all others together."""
    ordered = sorted(failed, key=lambda target: -float(failed[target].sum()))
    few = {target: failed[target] for target in ordered[:MOST_CURVES]}
    if others := ordered[MOST_CURVES:]:
        few[f"{len(others)} others"] = np.sum([failed[target] for target in others], axis=0)
    return few


def _few(curves: Curves) -> Curves:
    known = _known(curves)
    if len(known) <= MOST_CURVES:
        return known
    table = np.stack(list(known.values()))
    some = ~np.isnan(table).all(axis=0)
    few = {name: np.full(table.shape[1], np.nan) for name in (HIGHEST, MEDIAN, LOWEST)}
    for name, of in ((HIGHEST, np.nanmax), (MEDIAN, np.nanmedian), (LOWEST, np.nanmin)):
        few[name][some] = of(table[:, some], axis=0)
    return few

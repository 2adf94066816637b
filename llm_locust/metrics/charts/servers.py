"""What servers said of themselves, in the spans of the client's :class:`~.axis.TimeAxis`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.charts.increases import increases, over
from llm_locust.metrics.charts.roles import RoleCurves, role_curves
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.deployment.server_metrics import in_parts, one_per_gpu, together
from llm_locust.metrics.deployment.server_series import MetricSeries, SeriesKey, ServerSeries
from llm_locust.metrics.window import Window

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
        by_server={name: _few(curves) for name, curves in by_server.items() if _told(curves)},
        of_all=_told(of_all),
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
    known = _told(curves)
    if len(known) <= MOST_CURVES:
        return known
    table = np.stack(list(known.values()))
    some = ~np.isnan(table).all(axis=0)
    few = {name: np.full(table.shape[1], np.nan) for name in (HIGHEST, MEDIAN, LOWEST)}
    for name, of in ((HIGHEST, np.nanmax), (MEDIAN, np.nanmedian), (LOWEST, np.nanmin)):
        few[name][some] = of(table[:, some], axis=0)
    return few


def _told(curves: Curves) -> Curves:
    return {label: curve for label, curve in curves.items() if not np.isnan(curve).all()}

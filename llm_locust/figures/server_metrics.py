"""The ``server`` of a summary: what each target said of itself in the window, and what lies before it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Mask
from llm_locust.metrics.server_series import MetricSeries, SeriesKey, ServerSeries, Targets
from llm_locust.metrics.window import Window

#: States of one target: the name, and whether those of its engines add up or are a mean.
_STATES = {
    "running": True,
    "waiting": True,
    "kv_cache_usage": False,
    "prefix_cache_hit_rate": False,
    "gpu_utilisation": False,
    "power_w": True,
}
_COUNTS = (
    *("prompt_tokens", "prompt_tokens_computed", "prompt_tokens_received"),
    *("generation_tokens", "preemptions", "finished"),
    *("prefix_cache_queries", "prefix_cache_hits"),
    *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens", "kv_transfers_failed"),
)
_HISTOGRAMS = ("ttft_s", "tpot_s", "itl_s", "queue_s", "e2el_s", "kv_transfer_s")

#: How far the number of first tokens that the servers saw may be from the client's for their means to be of
#: the same requests.
SAME_REQUESTS = 0.05


def server_metrics(series: ServerSeries, c: Columns, window: Window) -> dict[str, Any]:
    """``targets``, one entry each, ``total`` of all, and ``gateway``: what lies between client and server.

    Counts are increases in the window. ``covered`` is the share of the window between a target's first and
    last scrape, ``failed`` how many scrapes gave nothing. Histograms have n, how far that may be off, mean
    and, as the buckets tell no more, bounds of p50 and p99, in milliseconds. What a target does not tell is
    None. ``failure`` is why all that is not of the whole run, None where it is.

    Returns:
        Nothing at all where nothing was scraped, and nothing went wrong with it.
    """
    if not series.by_key and not series.failure:
        return {}
    targets = [{"name": name, **figures_of(series, name)} for name in series.targets]
    total = figures_of(series, None)
    return {
        "targets": targets,
        "total": total,
        "gateway": gateway(total["ttft_ms"], c, window),
        "failure": series.failure or None,
    }


def gateway(server_ttft: Mapping[str, Any] | None, c: Columns, window: Window) -> dict[str, Any] | None:
    """What gateway and balancer add to a first token: mean TTFT of the client − that of the servers − mean
    round-trip time of the connections.

    Of the first tokens that came in the window, whatever became of their requests. ``same_requests`` says
    whether the servers saw as many: else others use them, or some of them are not scraped, and the
    difference is of unlike requests.

    Returns:
        ``{client_ttft_ms, server_ttft_ms, rtt_ms, gateway_ms, client_n, server_n, same_requests}``; None
        without both.
    """
    first = _first_tokens(c, window)
    if server_ttft is None or not server_ttft["n"] or not first.any():
        return None
    rtts = c.rtt_s[first & ~np.isnan(c.rtt_s)]
    client_ms, n = float(c.first_event_s[first].mean()) * 1e3, int(first.sum())
    rtt_ms = float(rtts.mean()) * 1e3 if len(rtts) else None
    return {
        "client_ttft_ms": client_ms,
        "server_ttft_ms": server_ttft["mean"],
        "rtt_ms": rtt_ms,
        "gateway_ms": client_ms - server_ttft["mean"] - (rtt_ms or 0.0),
        "client_n": n,
        "server_n": server_ttft["n"],
        "same_requests": abs(server_ttft["n"] - n) <= max(1.0, server_ttft["n_error"] + SAME_REQUESTS * n),
    }


def client_ttft(c: Columns, window: Window) -> tuple[float, int] | None:
    """Mean in ms of the first tokens that came in the window, whatever became of their requests, and their
    number; None without any."""
    first = _first_tokens(c, window)
    return (float(c.first_event_s[first].mean()) * 1e3, int(first.sum())) if first.any() else None


def _first_tokens(c: Columns, window: Window) -> Mask:
    return window.inside(c, c.sent_s + c.first_event_s) & c.streamed & ~c.stepped


def in_parts(series: ServerSeries, name: str, of: Targets = None) -> Floats:
    """A state over the window in its parts, added up over engines, or their mean; NaN where unknown."""
    found = one_per_gpu(series.named(name, of)).values()
    return together(name, list(found)) if found else np.full(len(series.edges_s) - 1, np.nan)


def together(name: str, found: Sequence[MetricSeries]) -> Floats:
    """The states of this name of some engines or GPUs in each part: added up, or their mean."""
    table = np.stack([each.means for each in found])
    known = ~np.isnan(table)
    summed, n = np.where(known, table, 0.0).sum(axis=0), known.sum(axis=0)
    divisor = np.where(n > 0, 1 if _STATES.get(name, False) else n, np.nan)
    return np.asarray(summed / divisor, dtype=np.float64)


def figures_of(series: ServerSeries, of: Targets) -> dict[str, Any]:
    states: dict[str, float | None] = {}
    for name in _STATES:
        found = one_per_gpu(series.named(name, of)).values()
        means = [each.mean for each in found if each.mean is not None]
        states[f"{name}_mean"] = _mean(series, name, of, means)
        states[f"{name}_max"] = _most(series, name, of, list(found))
    counts = {name: _increase(series, name, of) for name in _COUNTS}
    memory = one_per_gpu(series.named("gpu_memory_used_bytes", of)).values()
    queries, hits = counts["prefix_cache_queries"], counts["prefix_cache_hits"]
    return {
        **_scrapes(series, of),
        **states,
        **counts,
        "prefix_cache_hit_ratio": hits / queries if queries and hits is not None else None,
        **_speculation(series, of, counts),
        "kv_transfer_bytes": _increase(series, "kv_transfer_bytes_sum", of),
        "gpus": len(gpus(series, of)),
        "gpu_memory_used_bytes_max": max((m.most for m in memory if m.counts.any()), default=None),
        **{f"{name.removesuffix('_s')}_ms": _histogram(series, name, of) for name in _HISTOGRAMS},
    }


def _speculation(
    series: ServerSeries, of: Targets, counts: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Tokens a step of speculative decoding, 1 + accepted / drafts, and accepted / drafted tokens: by the
    counters, else the mean of what the servers report."""

    def mean(name: str) -> float | None:
        means = [each.mean for each in series.named(name, of).values() if each.mean is not None]
        return sum(means) / len(means) if means else None

    drafts, drafted, accepted = (
        counts[name] for name in ("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens")
    )
    length, rate = mean("spec_accept_length"), mean("spec_accept_rate")
    if accepted is not None:
        length, rate = 1 + accepted / drafts if drafts else length, accepted / drafted if drafted else rate
    return {"acceptance_length": length, "acceptance_rate": rate}


def _mean(series: ServerSeries, name: str, of: Targets, means: Sequence[float]) -> float | None:
    """Of one target that of its samples; of all together that over time, so that one that was silent for a
    while does not count as if it had gone on."""
    if not means:
        return None
    if not isinstance(of, str) and len(means) > 1 and _STATES[name]:
        return float(np.nanmean(in_parts(series, name, of)))
    return sum(means) / (1 if _STATES[name] else len(means))


def _most(series: ServerSeries, name: str, of: Targets, found: Sequence[MetricSeries]) -> float | None:
    """The largest sample; of several engines together the most that there was at one time."""
    seen = [each.most for each in found if each.counts.any()]
    if len(seen) > 1 and _STATES[name]:
        return float(np.nanmax(in_parts(series, name, of)))
    return max(seen, default=None)


def gpus(series: ServerSeries, of: Targets = None) -> set[str]:
    """The GPUs that anything is told of, by what tells them apart."""
    names = ("gpu_utilisation", "power_w", "energy_j", "gpu_memory_used_bytes")
    return {gpu_of(key) for name in names for key in series.named(name, of)}


def gpu_of(key: SeriesKey) -> str:
    """A GPU's own id, wherever it was read; else its number at the target."""
    return key.label("UUID", "gpu_uuid", "uuid") or f"{key.target}/{key.label('gpu', 'device') or 0}"


def one_per_gpu(found: Mapping[SeriesKey, MetricSeries]) -> dict[SeriesKey, MetricSeries]:
    """Without the same GPU's series of a second exporter; what is of no GPU stays as it is."""
    first: dict[str, str] = {}

    def counts(key: SeriesKey) -> bool:
        has_id = key.label("UUID", "gpu_uuid", "uuid") is not None
        return not has_id or first.setdefault(gpu_of(key), key.target) == key.target

    return {key: each for key, each in found.items() if counts(key)}


def _increase(series: ServerSeries, name: str, of: Targets) -> float | None:
    found = series.named(name, of)
    return sum(each.total for each in found.values()) if found else None


def _scrapes(series: ServerSeries, of: Targets) -> dict[str, Any]:
    up = series.named("up", of).values()
    scrapes = sum(float(each.counts.sum()) for each in up)
    covered = [each.covered_s / series.seconds for each in up] if series.seconds else []
    return {
        "scrapes": round(scrapes),
        "failed": round(scrapes - sum(each.total for each in up)),
        "covered": min(covered, default=None),
    }


def _histogram(series: ServerSeries, name: str, of: Targets) -> dict[str, Any] | None:
    counts, sums = _increase(series, f"{name}_count", of), _increase(series, f"{name}_sum", of)
    if counts is None or sums is None:
        return None
    edges: dict[float, float] = {}
    for key, each in series.named(f"{name}_bucket", of).items():
        edge = float(key.label("le") or math.nan)
        edges[edge] = edges.get(edge, 0.0) + each.total
    return {
        "n": counts,
        "n_error": sum(each.uncertain for each in series.named(f"{name}_count", of).values()),
        "mean": sums / counts * 1e3 if counts else None,
        "p50_bounds": _bounds(edges, 0.5),
        "p99_bounds": _bounds(edges, 0.99),
    }


def _bounds(cumulative: Mapping[float, float], share: float) -> list[float | None] | None:
    """The edges of the bucket that a percentile lies in, ms; the upper one is None where it is the last."""
    ordered = sorted(edge for edge in cumulative if not math.isnan(edge))
    if not ordered or cumulative[ordered[-1]] <= 0:
        return None
    below = 0.0
    for edge in ordered:
        if cumulative[edge] >= share * cumulative[ordered[-1]]:
            return [below * 1e3, edge * 1e3 if math.isfinite(edge) else None]
        below = edge
    return None

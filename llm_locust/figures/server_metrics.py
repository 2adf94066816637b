"""The ``server`` of a summary: what each target said of itself in the window, and what lies before it."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import UNSET, UnsetType

from llm_locust.metrics.columns import Columns, Floats, Mask
from llm_locust.metrics.server_series import MetricSeries, SeriesKey, ServerSeries, Targets
from llm_locust.metrics.structs import Interval, SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.metrics.server_roles import Role

_WINDOW = "the window"


class ServerHistogram(SummaryPart, frozen=True):
    """A server's own histogram."""

    n: Annotated[float, key("count of the histogram", _WINDOW)]
    n_error: Annotated[float, key("how far that may be off", _WINDOW)]
    mean: Annotated[float | None, key("mean, ms", _WINDOW)]
    p50_bounds: Annotated[Interval, key("edges of the bucket of p50, ms", _WINDOW)]
    p99_bounds: Annotated[Interval, key("edges of the bucket of p99, ms", _WINDOW)]


_STATE = "mean and largest of a state; null where it is not told"
_COUNT = "increase of a counter; null where it is not told"


class ServerFigures(SummaryPart, frozen=True, kw_only=True):
    """What servers said of themselves."""

    name: Annotated[str | UnsetType, key("a target; absent in `server.total`")] = UNSET
    role: Annotated[str | UnsetType | None, key("`prefill` or `decode`; null where it has none")] = UNSET
    role_source: Annotated[
        str | UnsetType | None, key("who says so: an option, a pod's or a sample's label, its counts")
    ] = UNSET
    role_doubt: Annotated[str | UnsetType | None, key("who says another role; null: nobody")] = UNSET
    scrapes: Annotated[int, key("number of scrapes", _WINDOW)]
    failed: Annotated[int, key("scrapes without a page", _WINDOW)]
    covered: Annotated[float | None, key("share of the window between first and last scrape", _WINDOW)]
    running_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    running_max: Annotated[float | None, key(_STATE, _WINDOW)]
    waiting_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    waiting_max: Annotated[float | None, key(_STATE, _WINDOW)]
    kv_cache_usage_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    kv_cache_usage_max: Annotated[float | None, key(_STATE, _WINDOW)]
    prefix_cache_hit_rate_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    prefix_cache_hit_rate_max: Annotated[float | None, key(_STATE, _WINDOW)]
    gpu_utilisation_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    gpu_utilisation_max: Annotated[float | None, key(_STATE, _WINDOW)]
    power_w_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    power_w_max: Annotated[float | None, key(_STATE, _WINDOW)]
    prompt_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    prompt_tokens_computed: Annotated[float | None, key(_COUNT, _WINDOW)]
    prompt_tokens_received: Annotated[float | None, key(_COUNT, _WINDOW)]
    generation_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    preemptions: Annotated[float | None, key(_COUNT, _WINDOW)]
    finished: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_queries: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_hits: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_drafts: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_draft_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_accepted_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    kv_transfers_failed: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_hit_ratio: Annotated[float | None, key("hits / queries", _WINDOW)]
    acceptance_length: Annotated[
        float | None,
        key("tokens a step of speculative decoding: 1 + accepted / drafts, else the reported mean", _WINDOW),
    ]
    acceptance_rate: Annotated[
        float | None, key("accepted / drafted tokens, else the reported mean", _WINDOW)
    ]
    kv_transfer_bytes: Annotated[
        float | None, key("KV cache moved between prefill and decode servers, bytes", _WINDOW)
    ]
    gpus: Annotated[int, key("GPUs seen", _WINDOW)]
    gpu_memory_used_bytes_max: Annotated[float | None, key("largest memory use of a GPU, bytes", _WINDOW)]
    ttft_ms: ServerHistogram | None
    tpot_ms: ServerHistogram | None
    itl_ms: ServerHistogram | None
    queue_ms: ServerHistogram | None
    e2el_ms: ServerHistogram | None
    kv_transfer_ms: ServerHistogram | None

    @property
    def target(self) -> str:
        """Its name; empty of several together."""
        return "" if self.name is UNSET else self.name


_FIRST = "first tokens in the window"


class GatewayFigures(SummaryPart, frozen=True):
    """What gateway and balancer add to a first token."""

    client_ttft_ms: Annotated[float, key("mean TTFT of the client, ms", _FIRST)]
    server_ttft_ms: Annotated[float | None, key("mean TTFT of the servers, ms", _FIRST)]
    rtt_ms: Annotated[float | None, key("mean round-trip time of the connections, ms", _FIRST)]
    gateway_ms: Annotated[
        float, key("what gateway and balancer add: client − servers − round trip, ms", _FIRST)
    ]
    client_n: Annotated[int, key("number of first tokens that the client saw", _FIRST)]
    server_n: Annotated[float, key("number of first tokens that the servers saw", _FIRST)]
    same_requests: Annotated[
        bool, key("the servers saw as many as the client: else the difference is of unlike requests", _FIRST)
    ]


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


def gateway(server_ttft: ServerHistogram | None, c: Columns, window: Window) -> GatewayFigures | None:
    """What gateway and balancer add to a first token: mean TTFT of the client − that of the servers − mean
    round-trip time of the connections.

    Of the first tokens that came in the window, whatever became of their requests. ``same_requests`` says
    whether the servers saw as many: else others use them, or some of them are not scraped, and the
    difference is of unlike requests. None without both.
    """
    first = _first_tokens(c, window)
    if server_ttft is None or not server_ttft.n or server_ttft.mean is None or not first.any():
        return None
    rtts = c.rtt_s[first & ~np.isnan(c.rtt_s)]
    client_ms, n = float(c.first_event_s[first].mean()) * 1e3, int(first.sum())
    rtt_ms = float(rtts.mean()) * 1e3 if len(rtts) else None
    return GatewayFigures(
        client_ttft_ms=client_ms,
        server_ttft_ms=server_ttft.mean,
        rtt_ms=rtt_ms,
        gateway_ms=client_ms - server_ttft.mean - (rtt_ms or 0.0),
        client_n=n,
        server_n=server_ttft.n,
        same_requests=is_of(n, server_ttft),
    )


def is_of(n: int, histogram: ServerHistogram) -> bool:
    """Whether a server's histogram is of as many requests as the client saw."""
    return bool(abs(histogram.n - n) <= max(1.0, histogram.n_error + SAME_REQUESTS * n))


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


def figures_of(series: ServerSeries, of: Targets, role: "Role | None" = None) -> ServerFigures:
    """The figures of a target, of some, or of all; ``role`` is that of one."""
    states: dict[str, Any] = {}
    for name in _STATES:
        found = one_per_gpu(series.named(name, of)).values()
        means = [each.mean for each in found if each.mean is not None]
        states[f"{name}_mean"] = _mean(series, name, of, means)
        states[f"{name}_max"] = _most(series, name, of, list(found))
    counts = {name: _increase(series, name, of) for name in _COUNTS}
    memory = one_per_gpu(series.named("gpu_memory_used_bytes", of)).values()
    queries, hits = counts["prefix_cache_queries"], counts["prefix_cache_hits"]
    histograms: dict[str, Any] = {
        f"{name.removesuffix('_s')}_ms": _histogram(series, name, of) for name in _HISTOGRAMS
    }
    length, rate = _speculation(series, of, counts)
    names: dict[str, Any] = {}
    if isinstance(of, str):
        of_role = (None, None, None) if role is None else (role.name, role.source, role.doubt)
        names = {"name": of, "role": of_role[0], "role_source": of_role[1], "role_doubt": of_role[2]}
    up = series.named("up", of).values()
    scrapes = sum(float(each.counts.sum()) for each in up)
    covered = [each.covered_s / series.seconds for each in up] if series.seconds else []
    return ServerFigures(
        **names,
        scrapes=round(scrapes),
        failed=round(scrapes - sum(each.total for each in up)),
        covered=min(covered, default=None),
        **states,
        **dict[str, Any](counts),
        prefix_cache_hit_ratio=hits / queries if queries and hits is not None else None,
        acceptance_length=length,
        acceptance_rate=rate,
        kv_transfer_bytes=_increase(series, "kv_transfer_bytes_sum", of),
        gpus=len(gpus(series, of)),
        gpu_memory_used_bytes_max=max((m.most for m in memory if m.counts.any()), default=None),
        **histograms,
    )


def _speculation(
    series: ServerSeries, of: Targets, counts: Mapping[str, float | None]
) -> tuple[float | None, float | None]:
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
    return length, rate


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


def _histogram(series: ServerSeries, name: str, of: Targets) -> ServerHistogram | None:
    counts, sums = _increase(series, f"{name}_count", of), _increase(series, f"{name}_sum", of)
    if counts is None or sums is None:
        return None
    edges: dict[float, float] = {}
    for which, each in series.named(f"{name}_bucket", of).items():
        edge = float(which.label("le") or math.nan)
        edges[edge] = edges.get(edge, 0.0) + each.total
    return ServerHistogram(
        n=counts,
        n_error=sum(each.uncertain for each in series.named(f"{name}_count", of).values()),
        mean=sums / counts * 1e3 if counts else None,
        p50_bounds=_bounds(edges, 0.5),
        p99_bounds=_bounds(edges, 0.99),
    )


def _bounds(cumulative: Mapping[float, float], share: float) -> Interval:
    """The edges of the bucket that a percentile lies in, ms; the upper one is None where it is the last."""
    ordered = sorted(edge for edge in cumulative if not math.isnan(edge))
    if not ordered or cumulative[ordered[-1]] <= 0:
        return None
    below = 0.0
    for edge in ordered:
        if cumulative[edge] >= share * cumulative[ordered[-1]]:
            return below * 1e3, edge * 1e3 if math.isfinite(edge) else None
        below = edge
    return None

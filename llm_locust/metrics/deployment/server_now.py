"""What each server says of itself now: the newest scrape, and what has come since the one before it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from llm_locust.metrics.deployment.server_series import is_counter

#: Servers that are told of; memory is bounded.
MOST_SERVERS = 256

_NS_A_SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNow:
    """One target's newest values; None is what it does not tell, or what is not defined.

    States are of the last scrape: ``running``, ``waiting`` and ``power_w`` added up over the target's
    engines and GPUs, ``kv_cache_usage`` and ``gpu_utilisation`` (0 to 1) their mean. Between the last two
    scrapes: ``prefix_hits``, the share of looked-up prompt tokens that were found in the prefix cache,
    ``generation_tokens_per_s``, ``ttft_ms``, the mean of the first tokens that it counted, and
    ``acceptance_length``, the tokens a step of speculative decoding. Of a target that gave no page (``up`` is
    False) nothing else is known but its ``role`` in disaggregated serving, None where it has none.
    """

    name: str
    up: bool
    role: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    prefix_hits: float | None = None
    generation_tokens_per_s: float | None = None
    ttft_ms: float | None = None
    acceptance_length: float | None = None
    gpu_utilisation: float | None = None
    power_w: float | None = None


#: The values of a :class:`ServerNow`, with the titles of their charts. One in per cent is a share.
FIGURES = {
    "running": "Running requests, by server",
    "waiting": "Waiting requests, by server",
    "kv_cache_usage": "KV cache in use, by server, %",
    "prefix_hits": "Prefix cache hits, by server, %",
    "generation_tokens_per_s": "Tokens generated per second, by server",
    "ttft_ms": "Mean TTFT as the servers measure it, ms",
    "acceptance_length": "Tokens a step of speculative decoding, by server",
    "gpu_utilisation": "GPU utilisation, by server, %",
    "power_w": "GPU power, by server, W",
}


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """The ``highest``, ``median`` and ``lowest`` of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return dict.fromkeys(("highest", "median", "lowest"))
    return {"highest": max(known), "median": median(known), "lowest": min(known)}


@dataclass(frozen=True, slots=True)
class _Scrape:
    """Sums by name over a target's series, and how many those are."""

    at_ns: int
    sums: dict[str, float]
    series: dict[str, int]

    def total(self, name: str) -> float | None:
        return self.sums.get(name)

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.series[name] if name in self.sums else None


@dataclass(slots=True)
class Newest:
    """The last two scrapes of each target, at most :data:`MOST_SERVERS` targets."""

    _last: dict[str, tuple[_Scrape | None, _Scrape]] = field(default_factory=dict)
    _roles: dict[str, str] = field(default_factory=dict)

    def add(
        self, target: str, at_ns: int, values: Iterable[tuple[str, float]], role: str | None = None
    ) -> None:
        """One scrape: each series' name and value, and the role that it tells."""
        if target not in self._last and len(self._last) >= MOST_SERVERS:
            return
        sums: dict[str, float] = defaultdict(float)
        series: dict[str, int] = defaultdict(int)
        for name, value in values:
            sums[name] += value
            series[name] += 1
        if role is not None:
            self._roles[target] = role
        _, before = self._last.get(target, (None, None))
        self._last[target] = before, _Scrape(at_ns, dict(sums), dict(series))

    def servers(self) -> list[ServerNow]:
        """Every target that was ever scraped, by name."""
        return [
            replace(_now(name, *scrapes), role=self._roles.get(name))
            for name, scrapes in sorted(self._last.items())
        ]


def _now(name: str, before: _Scrape | None, last: _Scrape) -> ServerNow:
    if not last.sums.get("up"):
        return ServerNow(name=name, up=False)
    ttft_s = _ratio(before, last, "ttft_s_sum", "ttft_s_count")
    hits = _ratio(before, last, "prefix_cache_hits", "prefix_cache_queries")
    accepted = _ratio(before, last, "spec_accepted_tokens", "spec_drafts")
    return ServerNow(
        name=name,
        up=True,
        running=last.total("running"),
        waiting=last.total("waiting"),
        kv_cache_usage=last.mean("kv_cache_usage"),
        prefix_hits=last.mean("prefix_cache_hit_rate") if hits is None else hits,
        generation_tokens_per_s=_per_s(before, last, "generation_tokens"),
        ttft_ms=None if ttft_s is None else ttft_s * 1e3,
        acceptance_length=last.mean("spec_accept_length") if accepted is None else 1 + accepted,
        gpu_utilisation=last.mean("gpu_utilisation"),
        power_w=last.total("power_w"),
    )


def _increase(before: _Scrape | None, last: _Scrape, name: str) -> float | None:
    """Of a counter; one that has fallen began anew at 0."""
    assert is_counter(name), name
    if before is None or name not in before.sums or name not in last.sums:
        return None
    grown = last.sums[name] - before.sums[name]
    return grown if grown >= 0 else last.sums[name]


def _ratio(before: _Scrape | None, last: _Scrape, part: str, whole: str) -> float | None:
    parts, wholes = _increase(before, last, part), _increase(before, last, whole)
    return parts / wholes if parts is not None and wholes else None


def _per_s(before: _Scrape | None, last: _Scrape, name: str) -> float | None:
    grown = _increase(before, last, name)
    seconds = 0.0 if before is None else (last.at_ns - before.at_ns) / _NS_A_SECOND
    return grown / seconds if grown is not None and seconds > 0 else None

"""Figures of a bench case, and their marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

READER = "C reader"
SDK = "openai SDK"

#: Nothing is in the way; another process on each processor; the event loop held for most of the time.
CALM, HOGS, HELD = "calm", "hogs", "held"

#: Streams of a client that has little to do.
IDLE = 50

OURS = "llm-locust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Quantiles of latencies in milliseconds. ``None``: there is no data for it."""

    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server did: its own times, and its lateness, of a client with a log for the same requests.

    ``write_us`` is the 99th percentile of the length of a write, within which its packet was stamped; None
    without a log.
    """

    times: Times
    tokens_per_s: float
    cpu_percent: float
    lateness_us: dict[str, float | None]
    write_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Differences of single requests between the client and the server's log: 99th percentiles, in ms."""

    requests: int
    ttft_p99: float
    itl_p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One client at one number of streams. ``None``: the client has no data for it.

    ``cpu_us_per_token`` is user and system time of the client's process over the tokens that it received in
    the same window; ``others_cpu_percent`` the CPU of processes outside the bench, in percent of one core:
    the noise. ``turn_p99_ms`` is the 99th percentile of the time from an answer's last packet to the same
    user's next request; ``whole_us_per_token`` the CPU of all processes of the client from start to end, the
    report included, over all tokens of its run.
    """

    client: str
    streams: int
    condition: str = CALM
    tokens_per_s: float | None
    cpu_us_per_token: float | None
    cpu_percent: float
    times: Times
    truth: Truth
    pairs: Pairs | None = None
    turn_p99_ms: float | None = None
    whole_us_per_token: float | None = None
    others_cpu_percent: float

    @property
    def name(self) -> str:
        return f"{self.client}, {self.streams:,} streams, {self.condition}"

    @property
    def rate_off_percent(self) -> float | None:
        if self.tokens_per_s is None or not self.truth.tokens_per_s:
            return None
        return 100 * abs(self.tokens_per_s / self.truth.tokens_per_s - 1)

    def off(self, quantile: str) -> float | None:
        """Difference in ms between a quantile and the server's, by its name in :class:`Times`."""
        seen, true = getattr(self.times, quantile), getattr(self.truth.times, quantile)
        return None if seen is None or true is None else abs(seen - true)


@dataclass(frozen=True, slots=True)
class Mark:
    """One acceptance mark: ``value`` must be at most ``limit``; an unknown value does not meet it."""

    text: str
    value: float | None
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value is not None and self.value <= self.limit


_WORDS = {
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "itl_p50": "ITL p50",
    "itl_p99": "ITL p99",
}
_EXACT = {"ttft_p50": 0.1, "ttft_p99": 1.0, "itl_p50": 0.1, "itl_p99": 1.0}

#: Largest differences in ms, by streams and condition.
_LIMITS_MS: dict[tuple[int, str], dict[str, float]] = {
    **{(streams, CALM): _EXACT for streams in (IDLE, 400, 2000)},
    **{
        (streams, condition): _EXACT | {"ttft_p99": 5.0, "itl_p99": 5.0}
        for streams in (400, 2000)
        for condition in (HOGS, HELD)
    },
}

#: Most CPU per token, as a multiple of the C reader's.
_MOST_OF_READER = {(400, CALM): 2.0, (2000, CALM): 1.5}


def marks_of(figures: Figures, among: Sequence[Figures]) -> list[Mark]:
    """Marks of llm-locust at this number of streams; no other client has any."""
    key, at = (figures.streams, figures.condition), f"{figures.name}: "
    limits = _LIMITS_MS.get(key)
    if limits is None or figures.client != OURS:
        return []
    marks = [
        Mark(f"{at}{_WORDS[name]} off the truth", figures.off(name), most, "ms")
        for name, most in limits.items()
    ]
    marks.append(Mark(at + "output tokens/s off the truth", figures.rate_off_percent, 1.0, "%"))
    if key == (IDLE, CALM):
        marks.append(
            Mark(at + "the end of an answer to the next request, p99", figures.turn_p99_ms, 3.0, "ms")
        )
    if key in _MOST_OF_READER:
        of_reader = ratio(figures, READER, among)
        marks.append(Mark(at + "CPU per token, of the C reader's", of_reader, _MOST_OF_READER[key], "×"))
    return marks


def ratio(figures: Figures, client: str, among: Sequence[Figures]) -> float | None:
    """CPU per token relative to another client's, at the nearest number of streams."""
    peers = [f for f in among if f.client == client and f.cpu_us_per_token]
    if not peers or not figures.cpu_us_per_token:
        return None
    peer = min(peers, key=lambda f: abs(f.streams - figures.streams))
    assert peer.cpu_us_per_token is not None
    return figures.cpu_us_per_token / peer.cpu_us_per_token


def mark_as_json(mark: Mark) -> dict[str, Any]:
    return {"text": mark.text, "value": mark.value, "limit": mark.limit, "unit": mark.unit, "met": mark.met}

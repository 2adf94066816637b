"""Figures of a bench case, their marks, and the printing of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

#: By ``--stamps``.
OURS = {"read": "llm-locust", "packet": "llm-locust, packet stamps"}
READER = "C reader"
SDK = "openai SDK"
NOISE_PERCENT = 20.0  # of one core: more outside the bench distorts the figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server did while a case's window was open: its own times, and its lateness."""

    ttft_ms: float
    gap_ms: float
    tokens_per_s: float
    cpu_percent: float
    lateness_us: dict[str, float | None]
    first_lateness_us: dict[str, float | None]

    @property
    def ttft_p50_ms(self) -> float:
        return self.ttft_ms + (self.first_lateness_us["p50"] or 0.0) * 1e-3

    @property
    def ttft_p99_ms(self) -> float:
        return self.ttft_ms + (self.first_lateness_us["p99"] or 0.0) * 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One client at one number of streams. ``None``: the client has no data for it.

    ``cpu_us_per_token`` is user and system time of the client's process over the tokens that it received in
    the same window; ``others_cpu_percent`` the CPU of processes outside the bench, in percent of one core:
    the noise.
    """

    client: str
    streams: int
    tokens_per_s: float | None
    cpu_us_per_token: float | None
    cpu_percent: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    truth: Truth
    others_cpu_percent: float

    @property
    def name(self) -> str:
        return f"{self.client}, {self.streams:,} streams"


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


def _off(seen: float | None, true: float) -> float | None:
    return None if seen is None else abs(seen - true)


def marks_of(figures: Figures) -> list[Mark]:
    """Marks of llm-locust at this number of streams; no other client has any."""
    if figures.client not in OURS.values():
        return []
    truth, at = figures.truth, f"{figures.name}: "
    p50_off = _off(figures.ttft_p50_ms, truth.ttft_p50_ms)
    if figures.streams > 400:
        return [Mark(at + "TTFT p50 off the truth", p50_off, 1.0, "ms")]
    rate_off = _off(figures.tokens_per_s, truth.tokens_per_s)
    percent_off = None if rate_off is None or not truth.tokens_per_s else 100 * rate_off / truth.tokens_per_s
    return [
        Mark(at + "TTFT p50 off the truth", p50_off, 0.5, "ms"),
        Mark(at + "TTFT p99 off the truth", _off(figures.ttft_p99_ms, truth.ttft_p99_ms), 5.0, "ms"),
        Mark(at + "TPOT p50 off the truth", _off(figures.tpot_p50_ms, truth.gap_ms), 0.05, "ms"),
        Mark(at + "output tokens/s off the truth", percent_off, 1.0, "%"),
        Mark(at + "CPU per token", figures.cpu_us_per_token, 12.0, "µs"),
    ]


def ratio(figures: Figures, client: str, among: Sequence[Figures]) -> float | None:
    """CPU per token relative to another client's, at the nearest number of streams."""
    peers = [f for f in among if f.client == client and f.cpu_us_per_token]
    if not peers or not figures.cpu_us_per_token:
        return None
    peer = min(peers, key=lambda f: abs(f.streams - figures.streams))
    assert peer.cpu_us_per_token is not None
    return figures.cpu_us_per_token / peer.cpu_us_per_token


def _text(value: float | None, digits: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _row(figures: Figures, among: Sequence[Figures]) -> list[str]:
    truth, late = figures.truth, figures.truth.lateness_us
    return [
        figures.client,
        f"{figures.streams:,}",
        _text(figures.cpu_us_per_token, 2),
        _text(ratio(figures, READER, among), 2, "×"),
        _text(ratio(figures, SDK, among), 3, "×"),
        _text(figures.cpu_percent, 0, " %"),
        f"{_text(figures.tokens_per_s, 0)} ({_text(truth.tokens_per_s, 0)})",
        f"{_text(figures.ttft_p50_ms, 2)} ({_text(truth.ttft_p50_ms, 2)})",
        f"{_text(figures.ttft_p99_ms, 2)} ({_text(truth.ttft_p99_ms, 2)})",
        f"{_text(figures.tpot_p50_ms, 3)} ({_text(truth.gap_ms, 0)})",
        " / ".join(_text(late[q], 0) for q in ("p50", "p99", "max")),
        _text(truth.cpu_percent, 0, " %"),
        _text(figures.others_cpu_percent, 0, " %"),
    ]


def print_figures(console: Console, results: Sequence[Figures]) -> None:
    """Print the table of all cases, and below it the marks."""
    table = Table(
        title="Clients against a server of known times (in brackets: the truth)", title_justify="left"
    )
    for heading in (
        "client",
        "streams",
        "CPU µs/token",
        "to reader",
        "to SDK",
        "client CPU",
        "tokens/s",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "TPOT p50 ms",
        "server late µs p50/p99/max",
        "server CPU",
        "others' CPU",
    ):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for figures in results:
        table.add_row(*_row(figures, results))
    console.print(table)
    for mark in (m for f in results for m in marks_of(f)):
        verdict = "[green]met    [/]" if mark.met else "[red]not met[/]"
        unit = f" {mark.unit}"
        console.print(f"{verdict} {mark.text}: {_text(mark.value, 3, unit)}, at most {mark.limit:g}{unit}")

    noisy = [f.name for f in results if f.others_cpu_percent > NOISE_PERCENT]
    if noisy:
        console.print(
            f"[yellow]not to be trusted[/] (others used over {NOISE_PERCENT:.0f} % of a core): "
            + "; ".join(noisy)
        )


def mark_as_json(mark: Mark) -> dict[str, Any]:
    return {"text": mark.text, "value": mark.value, "limit": mark.limit, "unit": mark.unit, "met": mark.met}

"""The printing of a bench's figures and marks."""

from collections.abc import Sequence

from figures import CALM, READER, SDK, Figures, Mark, ratio
from rich.console import Console
from rich.table import Table

NOISE_PERCENT = 20.0  # of one core: more outside the bench distorts the figures


def _text(value: float | None, digits: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _cost(figures: Figures, among: Sequence[Figures]) -> list[str]:
    truth, calm = figures.truth, figures.condition == CALM
    return [
        figures.client,
        f"{figures.streams:,}",
        figures.condition,
        _text(figures.cpu_us_per_token, 2),
        _text(figures.whole_us_per_token, 2),
        _text(ratio(figures, READER, among) if calm else None, 2, "×"),
        _text(ratio(figures, SDK, among) if calm else None, 3, "×"),
        _text(figures.cpu_percent, 0, " %"),
        f"{_text(figures.tokens_per_s, 0)} ({_text(truth.tokens_per_s, 0)})",
        _text(figures.rate_off_percent, 2, " %"),
        " / ".join(_text(truth.lateness_us[q], 0) for q in ("p50", "p99", "max")),
        _text(truth.cpu_percent, 0, " %"),
        _text(figures.others_cpu_percent, 0, " %"),
    ]


def _times(figures: Figures) -> list[str]:
    seen, true, pairs = figures.times, figures.truth.times, figures.pairs
    return [
        figures.client,
        f"{figures.streams:,}",
        figures.condition,
        *(
            f"{_text(getattr(seen, name), 3)} ({_text(getattr(true, name), 3)})"
            for name in ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p50", "itl_p99")
        ),
        " / ".join(_text(each, 3) for each in ((pairs.ttft_p99, pairs.itl_p99) if pairs else (None, None))),
        _text(figures.truth.write_us, 0),
        _text(figures.turn_p99_ms, 2),
    ]


def print_figures(console: Console, results: Sequence[Figures], marks: Sequence[Mark]) -> None:
    """Print the tables of all cases, and below them the marks."""
    print_table(
        console,
        "Cost, and throughput (in brackets: the server's own)",
        "client|streams|condition|CPU µs/token|whole run|to reader|to SDK|client CPU|tokens/s|off|"
        "server late µs p50/p99/max|server CPU|others' CPU",
        [_cost(f, results) for f in results],
    )
    print_table(
        console,
        "Times in ms (in brackets: the server's own)",
        "client|streams|condition|TTFT p50|TTFT p99|TPOT p50|ITL p50|ITL p99|"
        "off, each request: TTFT p99 / ITL p99|a write µs p99|end to next p99",
        [_times(f) for f in results],
    )
    print_marks(console, marks)
    noisy = [f.name for f in results if f.others_cpu_percent > NOISE_PERCENT]
    if noisy:
        console.print(
            f"[yellow]not to be trusted[/] (others used over {NOISE_PERCENT:.0f} % of a core): "
            + "; ".join(noisy)
        )


def print_marks(console: Console, marks: Sequence[Mark]) -> int:
    """Print which are met; return the exit code: 1 if one is not."""
    for mark in marks:
        verdict = "[green]met    [/]" if mark.met else "[red]not met[/]"
        unit = f" {mark.unit}".rstrip()
        console.print(
            f"{verdict} {mark.text}: {_text(mark.value, 3, unit)}, at most {mark.limit:g}{unit}",
            highlight=False,
            soft_wrap=True,
        )
    return 0 if all(mark.met for mark in marks) else 1


def print_table(console: Console, title: str, headings: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table; headings are separated by ``|``, and all but the first are of numbers."""
    table = Table(title=title, title_justify="left")
    for n, heading in enumerate(headings.split("|")):
        table.add_column(heading, justify="right" if n else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)

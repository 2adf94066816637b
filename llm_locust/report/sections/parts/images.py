"""Images of requests: their rates, and the time to a first token behind them."""

from llm_locust.metrics.summary_types.images import ImagesOfNumber
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow
from llm_locust.report.text import count, number
from llm_locust.report.uncertainty import counted, meaning_in


def images(summary: Summary) -> Section | None:
    """Images per second and per request; None of a run without any."""
    part = summary.images
    if part is None:
        return None
    each = part.per_request
    pixels = "pixels unknown" if part.pixels_per_s is None else f"{_mega(part.pixels_per_s)} MPixel/s"
    line = Line(
        f"{number(part.images_per_s)} images/s · {pixels} · {number(each.mean)} images a request "
        f"(at most {count(each.max)}) · {_mega(part.pixels_per_image)} MPixel an image"
    )
    columns = (
        Column("Images", left=True),
        *map(Column, ("TTFT p50 ms", "p99 ms", "input tokens, mean", "n")),
    )
    table = Table(columns, tuple(map(_row, part.by_number)))
    return Section("Images", lines=(line,), table=table, notes=tuple(meaning_in(table)))


def _mega(pixels: float | None) -> str:
    return number(None if pixels is None else pixels * 1e-6)


def _row(part: ImagesOfNumber) -> TableRow:
    times = part.ttft_ms
    cells = (
        part.images.replace("-", "–"),
        counted(times.p50, "p50", times.n),
        counted(times.p99, "p99", times.n),
        number(part.input_tokens_mean),
        count(part.requests),
    )
    return TableRow(cells)

"""What the answers cost, and what one GPU gave, where a price or a number of GPUs is known."""

from collections.abc import Iterator, Mapping

from llm_locust.metrics.summary_types.resources import Cost, CostFigures, GivenPrices
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import number, plural, seconds, sentence

#: Key of summary.json, what it is per, and how many of them: a price of one request has few digits.
_FIGURES = (
    ("total", "the window", 1),
    ("per_request", "1,000 requests", 1000),
    ("per_good_request", "1,000 good requests", 1000),
    ("per_million_input_tokens", "1M input tokens", 1),
    ("per_million_output_tokens", "1M output tokens", 1),
    ("per_million_good_output_tokens", "1M good output tokens", 1),
    ("per_session", "a session", 1),
)
_BASES = (
    ("gpu", "by GPU", ("gpu_hour_cost", "gpus")),
    ("api", "by API", ("input_token_price", "output_token_price")),
)

#: What is missing is worth a line where somebody may have expected the figure.
_EXPECTED = {"per_good_request": "no cost of good requests"}


def cost(summary: Summary) -> Section | None:
    """The whole cost over what came out, by GPU hours and by token prices; None where neither is given."""
    part = summary.cost
    if part is None:
        return None
    prices = part.prices
    shown = [
        (key, head) for key, head, names in _BASES if any(prices.figure(name) is not None for name in names)
    ]
    of_basis = {"gpu": part.gpu, "api": part.api}
    figures = [(key, head) for key, head in shown if of_basis[key].total is not None]
    columns = (Column("For", left=True), *(Column(head) for _, head in figures))
    rows = tuple(_rows([of_basis[key] for key, _ in figures]))
    return Section(
        "Cost",
        tuple(_lines(summary, part, prices)),
        Table(columns, rows) if rows else None,
        tuple(_missing(part.missing, [key for key, _ in shown], bool(figures))),
    )


def _lines(summary: Summary, part: Cost, prices: GivenPrices) -> Iterator[Line]:
    gpus = plural(prices.gpus, "GPU") if prices.gpus is not None else ""
    if gpus and prices.gpu_hour_cost is not None:
        window = seconds(summary.window.seconds)
        yield Line(f"{gpus} at {number(prices.gpu_hour_cost)} per hour, over the {window} of the window")
    inputs, outputs = prices.input_token_price, prices.output_token_price
    if inputs is not None and outputs is not None:
        yield Line(f"API: {number(inputs)} for 1M input tokens · {number(outputs)} for 1M output tokens")
    per_gpu = part.per_gpu
    given = [
        f"{number(per_gpu.figure(key))} {unit}"
        for key, unit in (
            ("goodput_requests_per_s", "good requests/s"),
            ("goodput_output_tokens_per_s", "good output tokens/s"),
            ("output_tokens_per_s", "output tokens/s"),
        )
        if per_gpu.figure(key) is not None
    ]
    if given:
        yield Line(f"each of {gpus}: {sentence(given)}")


def _rows(bases: list[CostFigures]) -> Iterator[TableRow]:
    for key, label, times in _FIGURES:
        values = [base.figure(key) for base in bases]
        if any(value is not None for value in values):
            yield TableRow((label, *(number(None if value is None else times * value) for value in values)))


def _missing(missing: Mapping[str, str], bases: list[str], has_figures: bool) -> Iterator[Line]:
    for base in bases:
        if base in missing:
            yield Line(f"no cost by {base.upper()}: {missing[base]}", Tone.WARN)
    for key, what in _EXPECTED.items():
        if has_figures and key in missing:
            yield Line(f"{what}: {missing[key]}", Tone.FAINT)

"""Requests that ask for a result of each input: their batches and rates."""

from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.metrics.summary_types.tokens import InputFigures
from llm_locust.report.section import Column, Section, Table, TableRow
from llm_locust.report.text import clean, count, number


def inputs(summary: Summary) -> Section | None:
    """Inputs per second and per request; None of a run without any."""
    part = summary.inputs
    if part is None:
        return None
    columns = (
        Column("Inputs", left=True, verbatim=True),
        *map(Column, ("inputs/s", "tokens/s", "tokens each", "a request, mean", "max", "n")),
    )
    rows = [_row(clean(name), figures) for name, figures in part.by_name.items()]
    return Section("Inputs", table=Table(columns, (_row("all", part), *rows)))


def _row(label: str, part: InputFigures) -> TableRow:
    each = part.per_request
    rates = (part.inputs_per_s, part.input_tokens_per_s, part.tokens_per_input, each.mean, each.max)
    return TableRow((label, *map(number, rates), count(each.n)))

"""Inputs of requests that ask for a result of each: texts to embed, documents to rank."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import asdict

from llm_locust.figures.figure import Run
from llm_locust.figures.section import Column, Section, Table, TableRow
from llm_locust.figures.text import clean, count, number
from llm_locust.metrics.columns import Columns, Rows, groups
from llm_locust.metrics.requests.rates import Credits, inputs_per_s, rate_per_s
from llm_locust.metrics.stats.censoring import ordered, summarise_ascending
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_ALL_INPUTS = "all requests with inputs, whenever scheduled"
_OK_INPUTS = "ok, scheduled in the window, with inputs"


class InputCounts(SummaryPart, frozen=True):
    """Inputs of a request: its batch size."""

    n: Annotated[int, key("number of requests", _OK_INPUTS)]
    mean: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    p50: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    p99: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    max: Annotated[float | None, key("inputs a request", _OK_INPUTS)]


class InputFigures(SummaryPart, frozen=True):
    """Texts that were embedded, or documents that were ranked."""

    inputs_per_s: Annotated[
        float | None, key("inputs of requests that were answered in the window / seconds", _ALL_INPUTS)
    ]
    input_tokens_per_s: Annotated[
        float | None,
        key("their tokens, by the server / seconds; a rerank: query and document", _ALL_INPUTS),
    ]
    per_request: InputCounts
    tokens_per_input: Annotated[float | None, key("Σ input tokens / Σ inputs", f"{_OK_INPUTS}, tokens known")]


class Inputs(InputFigures, frozen=True):
    """The same of all requests, and of those of each name."""

    by_name: Annotated[
        dict[str, InputFigures], key("of the requests of each name, where several names have inputs")
    ]


# --- Inputs of requests that ask for a result of each: texts to embed, documents to rank


def compute(run: Run) -> Inputs | None:
    return inputs(run.m.c, run.population.ok, run.m.credits)


def inputs(c: Columns, ok: Rows, credits: Credits) -> Inputs | None:
    """None of a run whose requests all ask for one answer.

    Rates are of all requests, whenever they were scheduled; inputs count when their answer has come, as their
    tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.inputs).all():
        return None
    by_name = {
        name: figures
        for name, rows in groups(c.name)
        if (figures := _figures(c, rows, np.intersect1d(rows, ok, assume_unique=True), credits))
    }
    total = _figures(c, np.arange(len(c)), ok, credits)
    return None if total is None else Inputs(**asdict(total), by_name=by_name if len(by_name) > 1 else {})


def _figures(c: Columns, rows: Rows, ok: Rows, credits: Credits) -> InputFigures | None:
    has = rows[~np.isnan(c.inputs[rows])]
    if not len(has):
        return None
    tokens, finished = credits.input_tokens[has], credits.finished[has]
    each = summarise_ascending(ordered(c.inputs[ok]))
    known = ok[~np.isnan(c.inputs[ok]) & ~np.isnan(c.input_tokens[ok])]
    amount = float(c.inputs[known].sum())
    return InputFigures(
        inputs_per_s=inputs_per_s(credits, has),
        input_tokens_per_s=rate_per_s(tokens, finished, credits.window.seconds),
        per_request=InputCounts(**{key: each[key] for key in ("n", "mean", "p50", "p99", "max")}),
        tokens_per_input=float(c.input_tokens[known].sum()) / amount if amount else None,
    )


# --- Requests that ask for a result of each input: their batches and rates


def show(summary: "Summary") -> Section | None:
    """Inputs per second and per request; None of a run without any."""
    part = summary.inputs
    if part is None:
        return None
    columns = (
        Column("Inputs", left=True, verbatim=True),
        *map(Column, ("inputs/s", "tokens/s", "tokens each", "a request, mean", "max", "n")),
    )
    rows = [_inputs_row(clean(name), figures) for name, figures in part.by_name.items()]
    return Section("Inputs", table=Table(columns, (_inputs_row("all", part), *rows)))


def _inputs_row(label: str, part: InputFigures) -> TableRow:
    each = part.per_request
    rates = (part.inputs_per_s, part.input_tokens_per_s, part.tokens_per_input, each.mean, each.max)
    return TableRow((label, *map(number, rates), count(each.n)))

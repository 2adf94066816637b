"""Inputs of requests: texts to embed, documents to rank, and images of prompts."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import asdict

from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    clean,
    count,
    counted,
    meaning_in,
    number,
)
from llm_locust.metrics.columns import Columns, Floats, Rows, groups
from llm_locust.metrics.requests.rates import Credits, inputs_per_s, rate_of_having, rate_per_s
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


# --- Images of prompts: how many are read per second, and how long a first token takes behind them


_ALL_IMAGES = "all requests with images, whenever scheduled"
_OK_IMAGES = "ok, scheduled in the window, with images"


class ImageCounts(SummaryPart, frozen=True):
    """Images of a request."""

    n: Annotated[int, key("number of requests", _OK_IMAGES)]
    mean: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p50: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p99: Annotated[float | None, key("images a request", _OK_IMAGES)]
    max: Annotated[float | None, key("images a request", _OK_IMAGES)]


_OF_NUMBER = "ok, scheduled in the window, with so many images"


class FirstTokens(SummaryPart, frozen=True):
    """TTFT of requests with so many images, in milliseconds."""

    n: Annotated[int, key("number of requests with a first token", _OF_NUMBER)]
    mean: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p50: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p99: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    max: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]


class ImagesOfNumber(SummaryPart, frozen=True):
    """Requests with the same number of images, or one in a range."""

    images: Annotated[str, key("number of images, or a range such as `3-4`")]
    requests: Annotated[int, key("number of requests", _OF_NUMBER)]
    ttft_ms: FirstTokens
    input_tokens_mean: Annotated[
        float | None, key("tokens of a prompt by the server, those of its images included", _OF_NUMBER)
    ]


class Images(SummaryPart, frozen=True):
    """Images that prompts have."""

    images_per_s: Annotated[
        float | None, key("images of prompts that had been read in the window / seconds", _ALL_IMAGES)
    ]
    pixels_per_s: Annotated[
        float | None, key("their pixels / seconds; null where the size of one is not known", _ALL_IMAGES)
    ]
    per_request: ImageCounts
    pixels_per_image: Annotated[
        float | None, key("Σ pixels / Σ images; null where the size of one is not known", _OK_IMAGES)
    ]
    by_number: list[ImagesOfNumber]


#: Numbers of images that are one row of ``by_number``: up to these, and more.
_EDGES = (0, 1, 2, 4, 8, 16, 32, 64)
_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+")


def compute_images(run: Run) -> Images | None:
    return images(run.m.c, run.population.ok, run.m.credits, run.m.values["ttft"])


def images(c: Columns, ok: Rows, credits: Credits, ttft_s: Floats) -> Images | None:
    """None of a run whose requests have none.

    Rates are of all requests, whenever they were scheduled: images count when their prompt has been read, as
    its tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.images).all():
        return None
    each = summarise_ascending(ordered(c.images[ok]))
    having = ok[~np.isnan(c.images[ok])]
    amount = float(c.images[having].sum())
    per_s = rate_of_having(credits, credits.images, np.arange(len(c)))
    pixels = float(c.pixels[having].sum())  # NaN where the size of one is not known
    per_image = pixels / amount if amount and not np.isnan(pixels) else None
    return Images(
        images_per_s=per_s,
        pixels_per_s=None if per_s is None else _pixels_per_s(c, credits),
        per_request=ImageCounts(**{key: each[key] for key in ("n", "mean", "p50", "p99", "max")}),
        pixels_per_image=per_image,
        by_number=_by_number(c, ok, ttft_s),
    )


def _pixels_per_s(c: Columns, credits: Credits) -> float | None:
    """None where the size of an image that was read in the window is not known."""
    counted = np.flatnonzero(credits.images > 0)
    if np.isnan(c.pixels[counted]).any():
        return None
    total = float(np.sort(c.pixels[counted]).sum())
    return total / credits.window.seconds if credits.window.seconds > 0 else None


_FIRST_TOKENS = FirstTokens.__struct_fields__


def _by_number(c: Columns, ok: Rows, ttft_s: Floats) -> list[ImagesOfNumber]:
    ok = ok[np.isnan(c.inputs[ok])]  # embeddings have neither images nor a first token
    place = np.searchsorted(_EDGES, np.nan_to_num(c.images[ok], nan=0.0))
    found = []
    for n_images in np.unique(place).tolist():
        rows = ok[place == n_images]
        ttft = summarise_ascending(ordered(ttft_s[rows] * 1e3))
        tokens = summarise_ascending(ordered(c.input_tokens[rows]))
        found.append(
            ImagesOfNumber(
                images=_LABELS[n_images],
                requests=len(rows),
                ttft_ms=FirstTokens(**{key: ttft[key] for key in _FIRST_TOKENS}),
                input_tokens_mean=tokens["mean"],
            )
        )
    return found


def show_images(summary: "Summary") -> Section | None:
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

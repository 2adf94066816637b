"""A comparison as one HTML page that loads nothing, in the look of ``report.html``."""

import math
from collections.abc import Iterator, Sequence

from llm_locust.metrics.compare.comparison import Row, Verdict
from llm_locust.metrics.gates import MetricKind
from llm_locust.report.compare.charts import charts
from llm_locust.report.compare.headline import TELLING, answer, first_clause, grave, in_order
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.compare.tables import ANSWER, FIGURES, sections
from llm_locust.report.compare.words import change
from llm_locust.report.html.overview import Tile
from llm_locust.report.html.shell import whole_page
from llm_locust.report.metric_names import figure_label
from llm_locust.report.section import Tone
from llm_locust.report.text import plural, short

#: Lines of a tile, and characters of one.
_MOST_LINES, _LONGEST = 4, 110


def page(outcome: ComparedRuns) -> bytes:
    """The page, in UTF-8: the answer in tiles, gates, warnings, verdict, runs, charts, tables."""
    parts, drawn = sections(outcome), charts(outcome)
    names = [run.label for run in outcome.runs]
    return whole_page(
        "compare.html.j2",
        {"run": "comparison", "charts": [chart.payload() for chart in drawn]},
        "llm_locust.report.compare",
        title=f"{names[0]} and {names[1]}" if outcome.is_pair else f"{len(names)} runs",
        tiles=tiles(outcome),
        first=[part for part in parts if part.chapter not in (ANSWER, FIGURES)],
        last=[part for part in parts if part.chapter == FIGURES],
        charts=drawn,
    )


def tiles(outcome: ComparedRuns) -> list[Tile]:
    """Better, worse or unknown and why; what moved; how far noise reaches; whether the runs are alike."""
    return [_answer(outcome), _moved(outcome), _noise(outcome), _alike(outcome)]


def _answer(outcome: ComparedRuns) -> Tile:
    found = answer(outcome)
    return Tile("Result", found.word, (*found.parts, f"exit code {found.code}{found.why_code}"), found.tone)


def _moved(outcome: ComparedRuns) -> Tile:
    rows = in_order(outcome.comparisons[-1].rows)
    worse, better = ([row for row in rows if row.verdict is v] for v in (Verdict.WORSE, Verdict.BETTER))
    if not worse and not better:
        few = sum(row.verdict is Verdict.TOO_FEW for row in rows)
        told = f"{few} of {plural(len(rows), 'figure')} cannot be told: too few samples" if few else ""
        return Tile("Moved beyond noise", "nothing", tuple(filter(None, [told])), Tone.FAINT)
    value = ", ".join(f"{len(some)} {word}" for some, word in ((worse, "worse"), (better, "better")) if some)
    named = [f"{figure_label(row.metric)} {change(row)}" for row in (worse + better)]
    more = len(named) - _MOST_LINES
    lines = (*named[:_MOST_LINES], *([plural(more, "more figure")] if more > 0 else []))
    tone = Tone.BAD if not better else Tone.GOOD if not worse else Tone.WARN
    return Tile("Moved beyond noise", value, lines, tone)


def _noise(outcome: ComparedRuns) -> Tile:
    """How large a difference could hide in the figures that say most."""
    rows = {row.metric.name: row for row in outcome.comparisons[-1].rows}
    reaches = [(row, _reach(row)) for name in TELLING if (row := rows.get(name)) is not None]
    known = [(row, reach) for row, reach in reaches if math.isfinite(reach)]
    if not known:
        told = "Too few requests to know the noise: run longer."
        return Tile("Noise", "unknown", (told,), Tone.WARN)
    lines = [f"{figure_label(row.metric)} ± {100 * reach:.2g} %" for row, reach in known]
    told = "A smaller difference cannot be told from none."
    return Tile("Noise", f"± {100 * known[0][1]:.2g} %", (*lines, told), Tone.PLAIN)


def _reach(row: Row) -> float:
    """Half of the interval of the change, as a share of base."""
    if row.change is None or row.metric.kind is MetricKind.SHARE:
        return math.inf
    return (row.change.high - row.change.low) / 2


def _alike(outcome: ComparedRuns) -> Tile:
    warnings = grave(outcome)
    if not warnings:
        told = "Same load, same model, whole runs, a client that was fast enough."
        return Tile("Runs alike", "yes", (told, *_clipped(outcome.warnings)), Tone.GOOD)
    return Tile("Runs alike", plural(len(warnings), "warning"), tuple(_clipped(warnings)), Tone.WARN)


def _clipped(warnings: Sequence[str]) -> Iterator[str]:
    yield from (short(first_clause(text), _LONGEST) for text in warnings[: _MOST_LINES - 1])
    if (more := len(warnings) - _MOST_LINES + 1) > 0:
        yield f"and {plural(more, 'more')} below"

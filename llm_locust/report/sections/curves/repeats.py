"""Figures of each load over its repeats."""

from llm_locust.metrics.summary_types.stages import OverRepeats, Repeats
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, load, number, percent

#: Figures of the table, and their heads; shares are shown in per cent.
_COLUMNS = {
    "ttft_p50_ms": Column("p50", over="TTFT ms"),
    "ttft_p99_ms": Column("p99", over="TTFT ms"),
    "tpot_p50_ms": Column("p50", over="TPOT ms", wide=True),
    "output_tokens_per_s": Column("tokens/s", over="output"),
    "inputs_per_s": Column("inputs/s"),
    "goodput": Column("goodput"),
}
_SHARES = ("goodput",)
_OF_SOME_RUNS = ("inputs_per_s",)
_UNITS = {"users": "users", "rate": "requests/s"}


def repeats(summary: Summary) -> Section | None:
    """Mean and 95 % interval of the repeats of each load; None where no load was repeated."""
    found = summary.repeats
    if not found:
        return None
    kinds = " or ".join(dict.fromkeys(_UNITS[load.kind] for load in found))
    columns = (
        Column(kinds, left=True),
        Column("lengths", left=True),
        Column("results"),
        *_COLUMNS.values(),
    )
    table = Table(columns, tuple(map(_row, found))).without_empty()
    note = Line("mean ± half its 95 % interval over the repeats, with what differs between them", Tone.FAINT)
    return Section("Repeats", table=table, notes=(note,))


def _row(repeated: Repeats) -> TableRow:
    cells = (_cell(repeated.figures.get(name), name) for name in _COLUMNS)
    tone = Tone.PLAIN if repeated.results == len(repeated.stages) else Tone.WARN
    results = f"{repeated.results} of {len(repeated.stages)}"
    return TableRow((load(repeated.asked), repeated.pair, results, *cells), tone)


def _cell(over: OverRepeats | None, name: str) -> str:
    if over is None or over.mean is None:
        return UNDEFINED if name not in _OF_SOME_RUNS else ""
    shown = percent if name in _SHARES else number
    if over.ci95 is None or over.ci95[1] is None:
        return shown(over.mean)
    return f"{shown(over.mean)} ± {shown(over.ci95[1] - over.mean)}"

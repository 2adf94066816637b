"""What more GPUs gave, where runs say how many served them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llm_locust.metrics.compare.scaling import Scaled, ScalingError, scaling
from llm_locust.metrics.deployment.cost import Prices
from llm_locust.report.compare.outcome import ComparedRuns
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, number, percent

#: Rate -> what stands over its columns, and its unit.
_RATES = {"output_tps": ("Output", "tokens/s"), "goodput_rps": ("Good", "requests/s")}

_OPEN_LOOP = (
    "an open loop sends every deployment the same load: for one that was not saturated this shows the load, "
    "not the scaling"
)


def scaled(outcome: ComparedRuns) -> dict[str, list[Scaled]]:
    """Rate -> its scaling over the runs; nothing of a rate that a run does not have, nor where fewer than two
    numbers of GPUs are known."""
    gpus = [Prices.of_options(run.compared.manifest.options).gpus for run in outcome.runs]
    found = {}
    for name in _RATES:
        rates = _rates(outcome, name)
        known = [(g, rate) for g, rate in zip(gpus, rates, strict=True) if g is not None and rate is not None]
        try:
            found[name] = scaling(known)
        except ScalingError:
            continue
    return found


def section(outcome: ComparedRuns) -> Section | None:
    """A table by number of GPUs; None where there is nothing to say."""
    found = scaled(outcome)
    if not found:
        return None
    by_gpus: dict[float, dict[str, Scaled]] = {}
    for name, entries in found.items():
        for entry in entries:
            by_gpus.setdefault(entry.gpus, {})[name] = entry
    columns = [Column("GPUs")]
    for over, unit in map(_RATES.__getitem__, found):
        columns += [Column(head, over) for head in (unit, "a GPU", "efficiency")]
    columns.append(Column("serial", "Karp-Flatt", wide=True))
    rows = [
        TableRow((f"{gpus:g}", *(cell for name in found for cell in _cells(of.get(name))), _serial(of)))
        for gpus, of in sorted(by_gpus.items())
    ]
    is_open = any(run.compared.manifest.open_loop for run in outcome.runs)
    notes = (Line(_OPEN_LOOP, Tone.WARN),) if is_open else ()
    return Section("Scaling", (), Table(tuple(columns), tuple(rows)), notes)


def as_data(outcome: ComparedRuns) -> dict[str, list[dict[str, Any]]]:
    """Plain values, for ``--format json``."""
    return {name: [asdict(entry) for entry in entries] for name, entries in scaled(outcome).items()}


def _rates(outcome: ComparedRuns, name: str) -> list[float | None]:
    first, *_ = outcome.comparisons
    base = next((row.base for row in first.rows if row.metric.name == name), None)
    others = [
        next((row.new for row in comparison.rows if row.metric.name == name), None)
        for comparison in outcome.comparisons
    ]
    return [base, *others]


def _cells(entry: Scaled | None) -> tuple[str, str, str]:
    if entry is None:
        return UNDEFINED, UNDEFINED, UNDEFINED
    return number(entry.rate), number(entry.per_gpu), percent(entry.efficiency)


def _serial(of: Mapping[str, Scaled]) -> str:
    serial = next(iter(of.values())).serial
    return UNDEFINED if serial is None else percent(serial)

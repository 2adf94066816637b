"""Tables that only the page has: the workers and the configuration."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from llm_locust.core.manifest import Manifest
from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.summary_types.completeness import WorkerCompleteness
from llm_locust.metrics.summary_types.deployment.replicas import ReplicaFigures
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.sections.groups import LATENCY_COLUMNS
from llm_locust.report.text import clean, count, number, percent

_MOST_ROWS = 100

#: Those that a narrow table has too.
_LATENCIES = {key: column for key, column in LATENCY_COLUMNS.items() if not column.wide}


def workers(run: RunCharts, summary: Summary) -> Section | None:
    """What each worker measured, beside what it cost; None where there was one."""
    known = {w.id: w for w in summary.completeness.workers}
    if max(len(run.workers), len(known)) < 2:
        return None
    columns = (
        Column("Worker", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        *_LATENCIES.values(),
        Column("tokens/s", over="output"),
        Column("goodput"),
        Column("p99 ms", over="hub lag"),
        Column("%", over="CPU"),
    )
    names = summary.completeness.names
    rows = [
        _worker_row(names.get(found.name, clean(found.name)), found, known.get(found.name))
        for found in run.workers
    ]
    return Section(
        "By worker",
        table=Table(columns, tuple(rows[:_MOST_ROWS])).without_empty(),
        notes=(
            Line(
                "The same server seen by each worker: a worker that differs is a client that differs.",
                Tone.FAINT,
            ),
            *_left_out(rows),
        ),
    )


def _worker_row(name: str, found: ReplicaFigures, known: WorkerCompleteness | None) -> TableRow:
    return TableRow(
        (
            name,
            count(found.requests),
            percent(found.share),
            percent(found.error_rate),
            *(number(found.figure(f"{key}_{place}_ms")) for key, place in _LATENCIES),
            number(found.output_tokens_per_s),
            percent(found.goodput_ratio),
            number(known.hub_lag_ms_p99) if known and known.hub_lag_ms_p99 is not None else "",
            number(known.cpu_percent_max) if known and known.cpu_percent_max is not None else "",
        )
    )


def configuration(manifest: Manifest) -> list[Section]:
    """All that the manifest knows of how the run was made; it holds no secrets."""
    facts: dict[str, object] = {
        "id": manifest.id,
        "host": manifest.host,
        "model": manifest.model,
        "scenario": manifest.scenario,
        "seed": manifest.seed,
        "loop": "open" if manifest.open_loop else "closed",
        "slo": manifest.slo,
        "gates": manifest.gates,
        "warm-up": f"{manifest.warmup_s:g} s",
        "workers": f"{len(manifest.workers)} of {manifest.workers_expected} expected",
        "command": shlex.join(manifest.command),
    }
    return [
        _settings("Run", facts),
        _settings("Options", manifest.options),
        _settings("Versions", manifest.versions),
    ]


def _settings(title: str, settings: Mapping[str, object]) -> Section:
    rows = tuple(
        TableRow((clean(key), _setting(value))) for key, value in settings.items() if value not in (None, "")
    )
    columns = (Column("Setting", left=True), Column("Value", left=True, verbatim=True, wraps=True))
    return Section(title, table=Table(columns, rows))


def _setting(value: object) -> str:
    return clean(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _left_out(rows: Sequence[object]) -> Iterator[Line]:
    if len(rows) > _MOST_ROWS:
        yield Line(f"{count(len(rows) - _MOST_ROWS)} more are not shown", Tone.FAINT)

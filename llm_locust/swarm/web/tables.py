"""Tables of Locust's page and of their CSV files: by name and class, and by replica."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_locust.figures.text import clean
from llm_locust.live.figures import Figures, rounded
from llm_locust.live.series import LiveSeries
from llm_locust.live.snapshot import LiveRow, Snapshot
from llm_locust.metrics.catalogue import LIVE, LatencyMetric
from llm_locust.swarm.web.status import RECENT_S, Look

_NO_BREAK = "\N{NO-BREAK SPACE}"

WHOLE, RECENT = (text.replace(" ", _NO_BREAK) for text in ("since start", f"last {RECENT_S:g} s"))
TOTAL = "Total"

TableCell = str | int | float | None


@dataclass(frozen=True, slots=True)
class _TableColumn:
    """``key`` names the column in JSON, ``title`` in the table."""

    key: str
    title: str
    cell: Callable[[Figures], TableCell]


def _share(value: float | None) -> float | None:
    return None if value is None else rounded(100 * value, 4)


def _latency(metric: LatencyMetric, place: str) -> _TableColumn:
    def cell(figures: Figures) -> TableCell:
        return rounded(figures.latencies[metric.key].at_ms(place))

    return _TableColumn(f"{metric.key}_{place}", f"{metric.label} {place} ms", cell)


_LATENCIES = (_latency(metric, place) for metric in LIVE if metric.live for place in metric.live.places)
_FIGURES = (
    _TableColumn("requests", "Requests", lambda f: f.requests),
    _TableColumn("failures", "Failures", lambda f: f.failures),
    _TableColumn("goodput", "Goodput %", lambda f: _share(f.goodput)),
    *_LATENCIES,
    _TableColumn("input_tokens", "Input tokens/s", lambda f: rounded(f.input_tokens_per_s, 5)),
    _TableColumn("output_tokens", "Output tokens/s", lambda f: rounded(f.output_tokens_per_s, 5)),
    _TableColumn("inputs", "Inputs/s", lambda f: rounded(f.inputs_per_s, 5)),
    _TableColumn("jobs", "Jobs", lambda f: None if f.agents is None else f.agents.jobs),
    _TableColumn("jobs_failed", "Failed jobs", lambda f: None if f.agents is None else f.agents.jobs_failed),
    _TableColumn("images", "Images/s", lambda f: rounded(f.images_per_s, 5)),
    _TableColumn("concurrency", "Concurrency", lambda f: rounded(f.concurrency, 3)),
)


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A tab of Locust's page. ``labels`` are the columns before the figures: key and title."""

    key: str
    title: str
    labels: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [*self.labels, ("span", "Span"), *((c.key, c.title) for c in _FIGURES)]

    @property
    def structure(self) -> dict[str, Any]:
        """Structure for ``extended_tables`` of Locust's page."""
        return {
            "key": self.key,
            "structure": [{"key": key, "title": title} for key, title in self.columns],
        }


NAMES = LiveTable("llm", "LLM", (("request", "Name"), ("slo_class", "Class")))
REPLICAS = LiveTable("llm-replicas", "Replicas", (("replica", "Replica"),))


def by_name(look: Look) -> list[dict[str, TableCell]]:
    """Two rows, for the whole run and the recent past, for each name and class, and for all together.

    ``name`` is the key by which Locust's page sorts the rows, as text.
    """
    label = {
        row.key: {"request": clean(row.key.name), "slo_class": clean(row.key.slo_class)}
        for row in look.whole.names
    }
    pairs = [(label[row.key], row.figures, recent) for row, recent in _pairs(look, lambda s: s.names)]
    total = {"request": TOTAL, "slo_class": ""}
    return _rows([*pairs, (total, look.whole.total, look.recent.total)])


def by_replica(look: Look) -> list[dict[str, TableCell]]:
    """As :func:`by_name`, for each known replica."""
    return _rows(
        ({"replica": clean(row.key.replica)}, row.figures, recent)
        for row, recent in _pairs(look, lambda s: s.replicas)
    )


def _pairs(
    look: Look, rows_of: Callable[[Snapshot], Sequence[LiveRow]]
) -> Iterator[tuple[LiveRow, Figures | None]]:
    recent = {row.key: row.figures for row in rows_of(look.recent)}
    for row in rows_of(look.whole):
        yield row, recent.get(row.key)


def _rows(
    pairs: Iterable[tuple[Mapping[str, str], Figures, Figures | None]],
) -> list[dict[str, TableCell]]:
    rows: list[dict[str, TableCell]] = []
    for labels, whole, recent in pairs:
        for span, of_span in ((WHOLE, whole), (RECENT, recent)):
            figured: dict[str, TableCell] = dict.fromkeys((c.key for c in _FIGURES), None)
            if of_span is not None:
                figured = {c.key: c.cell(of_span) for c in _FIGURES}
            rows.append({"name": f"{len(rows):06d}", **labels, "span": span, **figured})
    return rows


def table_csv(table: LiveTable, rows: Iterable[Mapping[str, TableCell]]) -> str:
    keys = [key for key, _ in table.columns]
    return _csv([title for _, title in table.columns], ([row[key] for key in keys] for row in rows))


def series_csv(series: LiveSeries) -> str:
    """A row for each cell, starting with the cell's start in seconds since the Unix epoch."""
    rows = zip(series.at_s, *series.columns.values(), strict=True)
    return _csv(["at_s", *series.columns], rows)


def _csv(head: Sequence[str], rows: Iterable[Iterable[TableCell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain(cell: TableCell) -> TableCell:
    """Escape text that a spreadsheet would run as a formula."""
    cell = cell.replace(_NO_BREAK, " ") if isinstance(cell, str) else cell
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell

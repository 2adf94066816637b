"""Chart series in small answers: only what has changed since the page's last request."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gevent.lock import BoundedSemaphore

from llm_locust.live.series import SPANS, Charts, LiveSeries, Span
from llm_locust.live.state import LoadMark
from llm_locust.live.store import LiveStore
from llm_locust.swarm.process.offload import off_the_hub
from llm_locust.swarm.web.numbers import KEEP_S, Fresh, at_rest

_Values = tuple[float | None, ...]


@dataclass(slots=True)
class _SentSpan:
    """A span as it was last sent: each point with the number of the change that it belongs to."""

    identity: tuple[object, ...] = ()
    generation: int = 0
    revision: int = 0
    width_s: float = 0.0
    names: tuple[str, ...] = ()
    points: dict[float, tuple[int, _Values]] = field(default_factory=dict)
    marks: list[LoadMark] = field(default_factory=list)
    marks_revision: int = 0


class Feed:
    """Incremental answers with the series of one store.

    An answer has a ``token``. A page that sends its last one gets the points that are new or have changed
    since (``full`` is False). Without a token, or with that of another run, reset or cell width, it gets
    everything. The series are computed every ``keep_s`` at most.
    """

    def __init__(self, store: LiveStore, keep_s: float = KEEP_S) -> None:
        self._store = store
        self._still = at_rest(store)
        self._charts = Charts(self._still)
        self._lock = BoundedSemaphore(1)  # one thread at a time computes the charts
        self._told = {span: _SentSpan() for span in SPANS}
        self._fresh = {span: Fresh(partial(self._bring_up, span), keep_s) for span in SPANS}

    def series(self, span: Span) -> LiveSeries:
        """All series of a span."""
        with self._lock:
            # The charts cache the cells of the store object that they were given.
            vars(self._still).update(vars(at_rest(self._store)))
            return off_the_hub(self._charts.series, span)

    def answer(self, span: Span, token: str = "") -> dict[str, Any]:
        """Changes since the answer that had ``token``."""
        told = self._fresh[span]()
        known = _revision(token, told.generation)
        points = [(at, values) for at, (changed, values) in told.points.items() if changed > known]
        answer: dict[str, Any] = {
            "token": f"{told.generation}-{told.revision}",
            "full": known < 0,
            "span": span,
            "width_s": told.width_s,
            "from_s": next(iter(told.points), None),
            "at_s": [at for at, _ in points],
            "columns": {name: [values[i] for _, values in points] for i, name in enumerate(told.names)},
        }
        if told.marks_revision > known:
            answer["marks"] = [asdict(mark) for mark in told.marks]
        return answer

    def _bring_up(self, span: Span) -> _SentSpan:
        store, told, series = self._store, self._told[span], self.series(span)
        names = tuple(series.columns)
        identity = (store.run.id, store.epoch, series.width_s, names)
        if identity != told.identity:
            generation = told.generation + 1
            told = self._told[span] = _SentSpan(identity, generation, width_s=series.width_s, names=names)
        points = dict(zip(series.at_s, zip(*series.columns.values(), strict=True), strict=False))
        changed = {at for at, values in points.items() if told.points.get(at, (0, None))[1] != values}
        if changed or series.marks != told.marks:
            told.revision += 1
        told.points = {at: _point(told, at, values, changed) for at, values in points.items()}
        if series.marks != told.marks:
            told.marks, told.marks_revision = series.marks, told.revision
        return told


def _point(told: _SentSpan, at: float, values: _Values, changed: Iterable[float]) -> tuple[int, _Values]:
    return (told.revision, values) if at in changed else told.points[at]


def _revision(token: str, generation: int) -> int:
    """Revision of a token of this generation; -1 for any other text."""
    of, _, revision = token.partition("-")
    return int(revision) if of == str(generation) and revision.isascii() and revision.isdigit() else -1

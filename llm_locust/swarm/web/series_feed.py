"""Series of the charts in small answers: only what has changed since the page's last request."""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gevent.lock import BoundedSemaphore

from llm_locust.live.series import SPANS, Charts, LiveSeries, Span
from llm_locust.live.state import LoadMark
from llm_locust.live.store import LiveStore
from llm_locust.swarm.process.event_loop import KEEP_S, Fresh, off_the_hub

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
        self._charts = Charts()
        self._lock = BoundedSemaphore(1)  # one thread at a time computes the charts
        self._sent = {span: _SentSpan() for span in SPANS}
        self._fresh = {span: Fresh(partial(self._bring_up, span), keep_s) for span in SPANS}

    def series(self, span: Span) -> LiveSeries:
        """All series of a span."""
        with self._lock:
            return off_the_hub(self._charts.series, self._store.at_rest(), span)

    def answer(self, span: Span, token: str = "") -> dict[str, Any]:
        """Changes since the answer that had ``token``."""
        sent = self._fresh[span]()
        before = _revision(token, sent.generation)
        points = [(at, values) for at, (changed, values) in sent.points.items() if changed > before]
        answer: dict[str, Any] = {
            "token": f"{sent.generation}-{sent.revision}",
            "full": before < 0,
            "span": span,
            "width_s": sent.width_s,
            "from_s": next(iter(sent.points), None),
            "at_s": [at for at, _ in points],
            "columns": {name: [values[i] for _, values in points] for i, name in enumerate(sent.names)},
        }
        if sent.marks_revision > before:
            answer["marks"] = [asdict(mark) for mark in sent.marks]
        return answer

    def _bring_up(self, span: Span) -> _SentSpan:
        store, sent, series = self._store, self._sent[span], self.series(span)
        names = tuple(series.columns)
        identity = (store.run.id, store.epoch, series.width_s, names)
        if identity != sent.identity:
            generation = sent.generation + 1
            sent = self._sent[span] = _SentSpan(identity, generation, width_s=series.width_s, names=names)
        points = dict(zip(series.at_s, zip(*series.columns.values(), strict=True), strict=False))
        changed = {at for at, values in points.items() if sent.points.get(at, (0, None))[1] != values}
        if changed or series.marks != sent.marks:
            sent.revision += 1
        sent.points = {
            at: (sent.revision, values) if at in changed else sent.points[at] for at, values in points.items()
        }
        if series.marks != sent.marks:
            sent.marks, sent.marks_revision = series.marks, sent.revision
        return sent


def _revision(token: str, generation: int) -> int:
    """Revision of a token of this generation; -1 for any other text."""
    of, _, revision = token.partition("-")
    return int(revision) if of == str(generation) and revision.isascii() and revision.isdigit() else -1

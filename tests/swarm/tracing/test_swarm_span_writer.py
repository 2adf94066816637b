"""Requests that are over become spans in slices, and each that does not is counted."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from record_strategies import record

from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.swarm import tracing
from llm_locust.swarm.tracing import SLICE, SpanWriter
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.reply import read_body

pytestmark = pytest.mark.alone

TARGET = Target.parse("http://127.0.0.1:8000")
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n{}"
REPLY = read_body(CHAT, b"{}")


class Exporter(SpanExporter):
    """Keeps what it gets, batch by batch; may wait before it does, and fail at some."""

    def __init__(self, fails: Callable[[int], bool] = lambda at: False) -> None:
        self.batches: list[list[str]] = []
        self.open = Event()
        self.open.set()
        self._fails = fails
        self._asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.open.wait()
        self._asked += 1
        if self._fails(self._asked):
            return SpanExportResult.FAILURE
        self.batches.append([str((span.attributes or {})["llm_locust.request_id"]) for span in spans])
        return SpanExportResult.SUCCESS

    @property
    def ids(self) -> list[str]:
        return sorted((i for batch in self.batches for i in batch), key=int)


class Hook:
    """Locust's event hook, as far as it matters."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., Any]] = []

    def add_listener(self, listener: Callable[..., Any]) -> None:
        self._listeners.append(listener)

    def fire(self) -> list[Any]:
        return [listener() for listener in self._listeners]


class Saying(logging.Handler):
    """Keeps what is said, with its level."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(f"{record.levelname} {record.getMessage()}")


@dataclass
class Process:
    """A process that traces."""

    exporter: Exporter
    writer: SpanWriter
    test_stop: Hook
    quit: Hook
    said: list[str] = field(default_factory=list)
    _made: int = 0

    def requests(self, number: int) -> list[str]:
        """Requests that begin and end; their ids."""
        trace = self.writer.tracer("run-1", "w1")
        assert trace is not None
        made = range(self._made, self._made + number)
        self._made += number
        for i in made:
            _, ended = trace(Call(request_id=str(i), name="n", scheduled_ns=1), TARGET, REQUEST)
            ended(Answer(record(i), REPLY))
        return [str(i) for i in made]

    def wait_for(self, ids: list[str]) -> None:
        with gevent.Timeout(120):
            while self.exporter.ids != ids:
                gevent.sleep(0.005)


@contextmanager
def process(
    exporter: Exporter | None = None, sampler: Sampler = ALWAYS_ON, *processors: SpanProcessor
) -> Iterator[Process]:
    exporter = exporter or Exporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for processor in (*processors, BatchSpanProcessor(exporter)):
        provider.add_span_processor(processor)
    events = SimpleNamespace(test_stop=Hook(), quit=Hook())
    environment: Any = SimpleNamespace(events=events)
    made = Process(exporter, SpanWriter(environment, provider), events.test_stop, events.quit)
    handler = Saying(made.said)
    tracing.logger.addHandler(handler)
    level = tracing.logger.level
    tracing.logger.setLevel(logging.INFO)
    try:
        yield made
    finally:
        exporter.open.set()
        made.quit.fire()
        tracing.logger.removeHandler(handler)
        tracing.logger.setLevel(level)
        provider.shutdown()


def test_each_request_is_exported_once_and_no_export_is_larger_than_a_slice() -> None:
    with process() as here:
        ids = here.requests(3 * SLICE + 5)
        assert here.exporter.batches == [], "a span was made while the load had its turn"
        here.wait_for(ids)
        assert max(map(len, here.exporter.batches)) == SLICE
        here.quit.fire()
    assert here.said == [f"INFO OpenTelemetry: {len(ids)} spans exported"]


def test_what_is_less_than_a_slice_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "INTERVAL_S", 0.02)
    with process() as here:
        here.wait_for(here.requests(2))


def test_at_a_runs_end_all_is_exported_at_once_and_said_once() -> None:
    with process() as here:
        ids = here.requests(3)
        gevent.joinall(here.test_stop.fire(), raise_error=True)
        assert here.exporter.ids == ids
        here.quit.fire()
        here.quit.fire()
    assert here.said == ["INFO OpenTelemetry: 3 spans exported"]


def test_two_runs_are_told_together() -> None:
    with process() as here:
        here.requests(3)
        gevent.joinall(here.test_stop.fire())
        here.requests(2)
        gevent.joinall(here.test_stop.fire())
    assert [text.split()[2] for text in here.said] == ["3", "5"]


def test_requests_that_find_the_queue_full_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "QUEUE", 50)
    with process() as here:
        here.exporter.open.clear()
        first = here.requests(SLICE)
        gevent.sleep(0.05)  # they are being exported
        here.requests(100)
        assert [
            text for text in here.said if text.startswith("WARNING OpenTelemetry: 1 spans are dropped so far")
        ]
        here.exporter.open.set()
        here.quit.fire()
        assert here.exporter.ids[: len(first)] == first
    assert here.said[-1] == f"WARNING OpenTelemetry: {SLICE + 50} spans exported, 50 dropped"


def test_after_a_failed_export_the_next_ones_wait_and_then_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "RETRY_AFTER_S", 0.2)
    with process(Exporter(lambda at: at == 1)) as here:
        begun = time.monotonic()
        ids = here.requests(3 * SLICE)
        here.wait_for(ids[SLICE:])
        assert time.monotonic() - begun > 0.2
    assert here.said == [
        f"WARNING OpenTelemetry: {2 * SLICE} spans exported, {SLICE} refused by the collector"
    ]


def test_a_collector_that_refuses_holds_up_no_end_and_what_is_lost_is_said() -> None:
    with process(Exporter(lambda at: True)) as here:
        here.requests(4 * SLICE)
        gevent.joinall(here.test_stop.fire())  # one slice by itself, and one more now
        begun = time.monotonic()
        here.quit.fire()
        assert time.monotonic() - begun < 1
    none = "WARNING OpenTelemetry: 0 spans exported"
    assert here.said == [
        f"{none}, {2 * SLICE} wait, {2 * SLICE} refused by the collector",
        f"{none}, {3 * SLICE} refused by the collector, {SLICE} dropped",
    ]


def test_a_collector_that_does_not_answer_is_waited_for_no_longer_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 0.1)
    with process() as here:
        here.exporter.open.clear()
        here.requests(SLICE + 3)
        gevent.sleep(0.05)
        gevent.joinall(here.test_stop.fire())
        begun = time.monotonic()
        here.quit.fire()
        assert time.monotonic() - begun < 1
    assert here.said == [
        f"INFO OpenTelemetry: 0 spans exported, {SLICE + 3} wait",
        f"WARNING OpenTelemetry: 0 spans exported, {SLICE + 3} dropped",
    ]


def test_what_the_sampler_does_not_want_is_neither_exported_nor_told() -> None:
    with process(sampler=ALWAYS_OFF) as here:
        here.requests(40)
        gevent.joinall(here.test_stop.fire())
    assert here.exporter.batches == []
    assert here.said == []


class Broken(SpanProcessor):
    """A processor of the user's own that cannot bear the first span."""

    def __init__(self) -> None:
        self._ended = 0

    def on_end(self, span: ReadableSpan) -> None:
        self._ended += 1
        if self._ended == 1:
            raise RuntimeError("not this one")


def test_a_broken_processor_of_the_users_own_stops_neither_load_nor_tracing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "RETRY_AFTER_S", 0.01)
    with process(Exporter(), ALWAYS_ON, Broken()) as here:
        ids = here.requests(2 * SLICE)
        here.wait_for(ids[SLICE:])
    assert here.said[0] == f"ERROR OpenTelemetry: {SLICE} spans could not be written"
    assert here.said[-1] == f"WARNING OpenTelemetry: {SLICE} spans exported, {SLICE} dropped"

"""Records as spans: the ids that were sent, the record's times; each that becomes none is counted."""

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
import pytest
from calls import GOOD, caller
from gevent.event import Event
from hypothesis import given
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import SpanKind, StatusCode
from record_strategies import record, record as numbered, records
from scripted import ScriptedServer, Step, refusing_port

from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.swarm import tracing
from llm_locust.swarm.tracing import (
    FIRST_TOKEN,
    SCOPE,
    SLICE,
    Ended,
    PlannedSpan,
    RunSpans,
    SpanWriter,
    attributes_of,
    error_type,
)
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, read_body
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES

# --- Records as spans: the ids that were sent, the record's times, and nothing unknown or secret


pytestmark = pytest.mark.alone

TARGET = Target.parse("http://llm.example:8000")
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.example\r\nX-Request-Id: a\r\n\r\n{}"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


def call(endpoint: Dialect | None = CHAT, model: str = "m") -> Call:
    return Call(request_id="a", name="ask", scheduled_ns=1, endpoint=endpoint, model=model)


def within_hours(record: RequestRecord) -> RequestRecord:
    """The same with durations that a run can have."""
    names = (
        *("rtt_ns", "client_lag_ns", "first_answer_ns", "clock_step_ns"),
        *("first_chunk_ns", "finish_ns", "last_chunk_ns"),
    )
    found = {name: getattr(record, name) for name in names}
    return replace(record, **{name: ns % 10**13 for name, ns in found.items() if ns is not None})


class Made:
    """Spans of one run, and those that the SDK's processors got."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._memory = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        tracer = self.provider.get_tracer(SCOPE)
        assert isinstance(tracer, Tracer)
        self.spans = RunSpans(sampler, tracer, "run-1", "w1")

    def begin(
        self, request: bytes = REQUEST, of: Call | None = None
    ) -> tuple[dict[str, str], PlannedSpan | None]:
        """The headers on the wire, and what is to become a span."""
        sent, planned = self.spans.begin(of or call(), TARGET, request)
        assert sent.split(b"\r\n\r\n", 1)[1] == request.split(b"\r\n\r\n", 1)[1]
        return headers(sent), planned

    def write(self, record: RequestRecord, *, request: bytes = REQUEST) -> ReadableSpan:
        _, planned = self.begin(request)
        assert planned is not None
        return self.finish([Ended(planned, record, None)])[0]

    def finish(self, ended: Sequence[Ended]) -> tuple[ReadableSpan, ...]:
        self._memory.clear()
        self.spans.write(ended)
        return self._memory.get_finished_spans()


def headers(request: bytes) -> dict[str, str]:
    lines = request.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")[1:]
    found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(found) == len(lines), "a header twice"
    return found


def with_header(line: str) -> bytes:
    return REQUEST.replace(b"Host:", line.encode() + b"\r\nHost:")


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def test_the_header_on_the_wire_has_exactly_the_spans_ids() -> None:
    made = Made()
    begun = [made.begin(REQUEST + b"\r\ntraceparent: of the body\r\n\r\n") for _ in range(3)]
    ended = [Ended(planned, numbered(i), None) for i, (_, planned) in enumerate(begun) if planned]
    for (sent, _), span in zip(begun, made.finish(ended), strict=True):
        assert sent["traceparent"].split("-") == ["00", *ids(span), "01"]
        assert span.parent is None
    assert len({sent["traceparent"] for sent, _ in begun}) == 3


def test_what_the_sampler_does_not_want_is_flagged_so_and_has_no_span() -> None:
    sent, planned = Made(ALWAYS_OFF).begin()
    assert sent["traceparent"].endswith("-00")
    assert planned is None


class Counting(Sampler):
    """Wants every second request; keeps what it was told."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *of: Any, **more: Any) -> Any:
        self.asked.append((name, *of))
        wanted = len(self.asked) % 2
        return SamplingResult(Decision.RECORD_AND_SAMPLE if wanted else Decision.DROP, {"rule": "odd"})

    def get_description(self) -> str:
        return "every second one"


def test_the_sampler_is_asked_once_before_the_request_and_its_attributes_are_kept() -> None:
    sampler = Counting()
    made = Made(sampler)
    (sent, first), (unsent, second) = made.begin(), made.begin()
    assert [sent["traceparent"][-2:], unsent["traceparent"][-2:]] == ["01", "00"]
    assert first is not None
    assert second is None
    (span,) = made.finish([Ended(first, numbered(1), None)])
    assert len(sampler.asked) == 2
    assert span.attributes is not None
    assert span.attributes["rule"] == "odd"
    name, kind, told = sampler.asked[0][:3]
    assert (name, kind) == ("chat m", SpanKind.CLIENT)
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "server.address": "llm.example",
        "server.port": 8000,
    }


def test_ids_do_not_come_of_the_loads_own_seed() -> None:
    def drawn() -> str:
        random.seed("7/0")
        return Made().begin()[0]["traceparent"]

    assert drawn() != drawn()
    random.seed("7/0")
    expected = random.random()
    random.seed("7/0")
    Made().write(numbered(1))
    assert random.random() == expected, "tracing draws from the generator that wait times draw from"


def test_a_traceparent_of_the_users_own_stays_and_is_the_parent() -> None:
    own = with_header(f"Traceparent: {PARENT}01")
    made = Made(ParentBased(ALWAYS_OFF))
    sent, _ = made.begin(own)
    assert sent["traceparent"] == PARENT + "01"
    span = made.write(numbered(1), request=own)
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert ids(span)[0] == PARENT.split("-")[1]
    assert made.begin(with_header(f"traceparent: {PARENT}00"))[1] is None, "as its sampled flag says"


def test_a_traceparent_that_is_none_stays_and_the_span_has_no_parent() -> None:
    own = with_header("traceparent: nonsense")
    assert Made().begin(own)[0]["traceparent"] == "nonsense"
    assert Made().write(numbered(1), request=own).parent is None


def test_a_span_around_the_users_code_is_the_parent_and_its_state_is_handed_on() -> None:
    made = Made()
    carried = trace.SpanContext(
        5, 6, True, trace.TraceFlags(3), trace.TraceState([("vendor", "x"), ("other", "y")])
    )
    with trace.use_span(trace.NonRecordingSpan(carried)):
        sent, planned = made.begin()
    assert planned is not None
    (span,) = made.finish([Ended(planned, numbered(1), None)])
    assert span.parent == carried
    assert sent["traceparent"].split("-") == ["00", f"{5:032x}", ids(span)[1], "03"]
    assert sent["tracestate"] == "vendor=x,other=y"
    assert span.context is not None
    assert span.context.trace_flags == 3


@given(records().map(within_hours))
def test_times_are_the_records_own_to_the_nanosecond(record: RequestRecord) -> None:
    span = Made().write(record)
    step_ns = record.clock_step_ns or 0
    begun_ns = record.started_ns if record.sent_ns is None else record.sent_ns
    assert (span.start_time, span.end_time) == (begun_ns + step_ns, record.ended_ns + step_ns)
    tokens = [(e.name, e.timestamp) for e in span.events]
    arrivals = record.arrivals_ns
    assert tokens == ([(FIRST_TOKEN, begun_ns + step_ns + arrivals[0])] if len(arrivals) else [])


@given(records().map(within_hours))
def test_nothing_unknown_and_no_error_text_is_in_a_span(record: RequestRecord) -> None:
    span = Made().write(record)
    assert span.attributes is not None
    found = dict(span.attributes)
    assert None not in found.values()
    assert "" not in found.values()
    assert not any(isinstance(value, float) and np.isnan(value) for value in found.values())
    if record.output_tokens is None or record.token_source is TokenSource.EVENTS:
        assert "gen_ai.usage.output_tokens" not in found
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in found)
    assert span.status.description == found.get("error.type")
    text = "the prompt was: hush"
    assert attributes_of(record, None, {}).items() <= found.items()
    assert attributes_of(replace(record, error=text), None, {}) == attributes_of(record, None, {})


def test_a_span_says_what_the_conventions_and_the_records_have_words_for() -> None:
    record = RequestRecord(
        request_id="a-1",
        name="ask",
        outcome=Outcome.OK,
        scheduled_ns=1_000_000_000,
        started_ns=1_250_000_000,
        sent_ns=1_500_000_000,
        ended_ns=3_600_000_000,
        arrivals_ns=np.array([500_000_000, 1_000_000_000, 2_000_000_000]),
        slo_class="gold",
        status=200,
        finish_reason="length",
        input_tokens=7,
        cached_tokens=4,
        output_tokens=4,
        reasoning_tokens=2,
        token_source=TokenSource.USAGE,
        asked_output_tokens=9,
        replica="r1",
        session="s",
        turn=0,
    )
    made = Made()
    _, planned = made.begin()
    assert planned is not None
    (span,) = made.finish([Ended(planned, record, "m-2026")])
    assert (span.name, span.kind, span.status.status_code) == ("chat m", SpanKind.CLIENT, StatusCode.UNSET)
    assert span.attributes == {
        "server.address": "llm.example",
        "server.port": 8000,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.conversation.id": "s",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.server.time_to_first_token": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "http.response.status_code": 200,
        "llm_locust.run": "run-1",
        "llm_locust.worker": "w1",
        "llm_locust.request_id": "a-1",
        "llm_locust.name": "ask",
        "llm_locust.class": "gold",
        "llm_locust.outcome": "ok",
        "llm_locust.replica": "r1",
        "llm_locust.turn": 0,
        "llm_locust.token_events": 3,
        "llm_locust.ttft_s": 0.5,
        "llm_locust.tpot_s": 0.5,
        "llm_locust.e2el_s": 2.0,
        "llm_locust.schedule_delay_s": 0.5,
    }


@pytest.mark.parametrize(
    ("endpoint", "path", "name"),
    [
        (CHAT, "chat/completions", "chat m"),
        (COMPLETIONS, "completions", "text_completion m"),
        (RESPONSES, "responses", "chat m"),
        (MESSAGES, "messages", "chat m"),
        (None, "embeddings", "embeddings m"),
        (None, "rerank", "m"),
    ],
)
def test_the_span_is_named_by_operation_and_model(endpoint: Dialect | None, path: str, name: str) -> None:
    request = REQUEST.replace(b"chat/completions", path.encode())
    _, planned = Made().begin(request, call(endpoint))
    assert planned is not None
    assert planned.name == name


def test_without_operation_and_model_the_span_has_the_requests_name() -> None:
    request = REQUEST.replace(b"POST /v1/chat/completions", b"GET /v1/models")
    _, planned = Made().begin(request, call(None, ""))
    assert planned is not None
    assert planned.name == "ask"


@pytest.mark.parametrize(
    ("outcome", "status", "expected"),
    [
        (Outcome.OK, 200, None),
        (Outcome.CANCELLED, None, None),
        (Outcome.HTTP_ERROR, 429, "429"),
        (Outcome.CONNECT_ERROR, None, "connect_error"),
        (Outcome.TRUNCATED, 200, "truncated"),
        (Outcome.REJECTED, 200, "rejected"),
    ],
)
def test_a_failure_has_its_type(outcome: Outcome, status: int | None, expected: str | None) -> None:
    record = RequestRecord(
        request_id="a", name="n", outcome=outcome, scheduled_ns=1, started_ns=1, ended_ns=1, status=status
    )
    assert error_type(record) == expected


# In the client


@contextmanager
def traced(url: str) -> Any:
    """A caller whose calls are traced, with what was begun and what ended."""
    made = Made()
    begun: list[PlannedSpan | None] = []
    ended: list[Answer] = []

    def begin(call: Call, target: Target, request: bytes) -> Any:
        request, planned = made.spans.begin(call, target, request)
        begun.append(planned)
        return request, ended.append

    with caller(url, trace=begin) as asking:
        yield asking, begun, ended


def test_the_server_gets_the_trace_and_the_span_the_answer_whatever_it_is(server: ScriptedServer) -> None:
    with traced(server.url) as (asking, begun, ended):
        asking.ask([GOOD])
        stalled = asking.spawn([Step(at_ms=0, stall=True)])
        gevent.sleep(0.05)
        stalled.kill()
        served = server.wait_ended(2)
    assert [a.record.outcome for a in ended] == [Outcome.OK, Outcome.CANCELLED]
    assert ended == asking.answers
    for request, planned in zip(served, begun, strict=True):
        context = planned.context
        assert request.header("traceparent") == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        assert planned.attributes["server.port"] == server.port


def test_a_call_that_could_not_be_sent_has_its_span_too() -> None:
    with refusing_port() as port, traced(f"http://127.0.0.1:{port}") as (asking, begun, ended):
        asking.ask(None)
    assert [a.record.outcome for a in ended] == [Outcome.CONNECT_ERROR]
    assert len(begun) == 1


# --- Requests that are over become spans in slices, and each that does not is counted


WRITTEN_TARGET = Target.parse("http://127.0.0.1:8000")
WRITTEN_REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n{}"
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
            _, ended = trace(
                Call(request_id=str(i), name="n", scheduled_ns=1), WRITTEN_TARGET, WRITTEN_REQUEST
            )
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

"""Requests as OpenTelemetry spans."""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import gevent
import numpy as np
from gevent.event import Event
from gevent.lock import Semaphore
from opentelemetry import context as contexts, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from llm_locust.client.call import Trace
from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.client.routes import header_value, with_lines
from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord, TokenSource, moved
from llm_locust.metrics.catalogue import FORMULAS, View, shown_in
from llm_locust.metrics.columns import Part
from llm_locust.swarm.process.event_loop import RateLimiter, spawn_loop

if TYPE_CHECKING:
    from locust.env import Environment


# --------------------
# LLM requests as OpenTelemetry spans, by the semantic conventions for generative AI clients.
#
# A span is made when its request is over, from the record and with the record's own times. Its ids and the
# sampler's decision date from before the request was sent: ``traceparent`` carried them to the server. A
# span has no text of a prompt or an answer, no error text, and no header.
#
# Needs the OpenTelemetry SDK. :mod:`llm_locust.swarm.tracing` checks whether it is in use.
# --------------------


#: Instrumentation scope of every span of this package.
SCOPE = "llm_locust"

#: Name of the event at the first token's arrival.
FIRST_TOKEN = "llm_locust.first_token"

_LATENCIES = {metric.key: FORMULAS[metric.key] for metric in shown_in(View.SPANS)}

_W3C = TraceContextTextMapPropagator()

#: Flag of ``traceparent``: the trace id is random. A received flag is passed on.
_RANDOM_FLAG = 0x02

Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """A span to be made once its request is over."""

    name: str
    parent: Context
    context: SpanContext
    decision: Decision
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished request. ``model`` is the one that the answer names."""

    planned: PlannedSpan
    record: RequestRecord
    model: str | None


class _PresetSampler(IdGenerator, Sampler):
    """Sampler and id generator that return the decision and the ids that the request was sent with."""

    def __init__(self, context: SpanContext, sampling: SamplingResult) -> None:
        self._context = context
        self._sampling = sampling

    def generate_trace_id(self) -> int:
        return self._context.trace_id

    def generate_span_id(self) -> int:
        return self._context.span_id

    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        return self._sampling

    def get_description(self) -> str:
        return "as it was decided when the request was sent"


class RunSpans:
    """Spans of one run in one process."""

    def __init__(self, sampler: Sampler, tracer: Tracer, run: str, worker: str) -> None:
        self._sampler = sampler
        self._tracer = tracer
        self._worker = worker
        self._own: Attributes = {"llm_locust.run": run, "llm_locust.worker": worker}

    def begin(self, call: Call, target: Target, request: bytes) -> tuple[bytes, PlannedSpan | None]:
        """Return the request with its trace context, and the future span; None if the sampler rejects it.

        A ``traceparent`` that the user has set stays unchanged, and the span is a child of the one that it
        names. Otherwise the parent is the current span of the user's code, if there is one.
        """
        own = header_value(request, b"traceparent")
        parent = contexts.get_current()
        if own is not None:
            state = header_value(request, b"tracestate") or ""
            parent = _W3C.extract({"traceparent": own, "tracestate": state}, parent)
        attributes = _sampling_attributes(call, target, request)
        naming = ("gen_ai.operation.name", "gen_ai.request.model")
        name = " ".join(str(attributes[key]) for key in naming if key in attributes) or call.name
        context, sampling = self._decide(parent, name, attributes)
        if own is None:
            request = with_lines(request, _trace_lines(context))
        if not sampling.decision.is_sampled():
            return request, None
        return request, PlannedSpan(
            name, parent, context, sampling.decision, attributes | dict(sampling.attributes)
        )

    def _decide(
        self, parent: Context, name: str, attributes: Mapping[str, AttributeValue]
    ) -> tuple[SpanContext, SamplingResult]:
        above = trace.get_current_span(parent).get_span_context()
        trace_id, handed_on = _random_id(128), 0
        if above.is_valid:
            trace_id, handed_on = above.trace_id, above.trace_flags & _RANDOM_FLAG
        sampling = self._sampler.should_sample(parent, trace_id, name, SpanKind.CLIENT, attributes, ())
        sampled = TraceFlags.SAMPLED if sampling.decision.is_sampled() else TraceFlags.DEFAULT
        context = SpanContext(
            trace_id, _random_id(64), False, TraceFlags(sampled | handed_on), sampling.trace_state
        )
        return context, sampling

    def write(self, ended: Sequence[Ended]) -> None:
        """Make the spans and pass them to the SDK's processors: 1 ms, and 50 µs for each."""
        records = [e.record for e in ended]
        part = Part.from_batch(RecordBatch.from_records(records, self._worker), records[0].scheduled_ns)
        columns = [latency(part).tolist() for latency in _LATENCIES.values()]
        for e, row in zip(ended, zip(*columns, strict=True), strict=True):
            values = zip(_LATENCIES, row, strict=True)
            self._write(e, {name: value for name, value in values if not np.isnan(value)})

    def _write(self, ended: Ended, latencies_s: Mapping[str, float]) -> None:
        planned, record = ended.planned, ended.record
        if record.clock_step_ns is not None:
            record = moved(record, record.clock_step_ns)  # as in the recorded row
        begun_ns = record.started_ns if record.sent_ns is None else record.sent_ns
        attributes = planned.attributes | attributes_of(record, ended.model, latencies_s) | self._own
        sampling = SamplingResult(planned.decision, attributes, planned.context.trace_state)
        self._tracer.id_generator = self._tracer.sampler = _PresetSampler(planned.context, sampling)
        span = self._tracer.start_span(planned.name, planned.parent, SpanKind.CLIENT, start_time=begun_ns)
        if len(record.arrivals_ns):
            span.add_event(FIRST_TOKEN, timestamp=begun_ns + int(record.arrivals_ns[0]))
        if failure := error_type(record):
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(record.ended_ns)


def _sampling_attributes(call: Call, target: Target, request: bytes) -> Attributes:
    """Attributes that the conventions require for sampling."""
    attributes: Attributes = {"server.address": target.host, "server.port": target.port}
    if call.endpoint is not None:
        attributes["gen_ai.operation.name"] = call.endpoint.operation
        attributes["gen_ai.provider.name"] = call.endpoint.provider
    elif request.split(b" ", 2)[1].endswith(b"/embeddings"):
        attributes |= {"gen_ai.operation.name": "embeddings", "gen_ai.provider.name": "openai"}
    if call.model:
        attributes["gen_ai.request.model"] = call.model
    return attributes


def attributes_of(
    record: RequestRecord, response_model: str | None, latencies_s: Mapping[str, float]
) -> Attributes:
    """Attributes of a finished request's span. Unknown ones are left out.

    Args:
        response_model: the model that the answer names.
        latencies_s: by their names in docs/definitions.md.
    """
    counted = record.token_source is not TokenSource.EVENTS
    first_s = latencies_s.get("ttft")
    found: dict[str, AttributeValue | None] = {
        "gen_ai.request.stream": record.streamed or None,
        "gen_ai.request.max_tokens": record.asked_output_tokens,
        "gen_ai.conversation.id": record.session,
        "gen_ai.response.model": response_model,
        "gen_ai.response.finish_reasons": (record.finish_reason,) if record.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": first_s,
        "gen_ai.server.time_to_first_token": first_s,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens if counted else None,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        "http.response.status_code": record.status,
        "error.type": error_type(record),
        "llm_locust.request_id": record.request_id,
        "llm_locust.name": record.name,
        "llm_locust.class": record.slo_class,
        "llm_locust.outcome": record.outcome.value,
        "llm_locust.abandoned": record.abandoned or None,
        "llm_locust.replica": record.replica,
        "llm_locust.turn": record.turn,
        "llm_locust.token_events": len(record.arrivals_ns) or None,
        **{f"llm_locust.{name}_s": value for name, value in latencies_s.items()},
    }
    return {name: value for name, value in found.items() if value is not None and value != ""}


def error_type(record: RequestRecord) -> str | None:
    """HTTP status of an error answer, or the outcome of any other failed request.

    A cancelled request is not a failure of the server.
    """
    if record.outcome in (Outcome.OK, Outcome.CANCELLED):
        return None
    if record.outcome is Outcome.HTTP_ERROR and record.status is not None:
        return str(record.status)
    return record.outcome.value


def _random_id(bits: int) -> int:
    """Random id from the system's generator: Python's own is seeded for the load and would repeat."""
    return secrets.randbits(bits) or _random_id(bits)


def _trace_lines(context: SpanContext) -> bytes:
    """Header lines of W3C Trace Context."""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = f"tracestate: {context.trace_state.to_header()}\r\n" if context.trace_state else ""
    return f"traceparent: {parent}\r\n{state}".encode()


# --------------------
# Conversion of finished requests to spans, in slices, in the background of the load.
#
# Requests wait in a queue. Every second, or as soon as a slice is full, the spans of one slice are made and
# exported, then those of the next. So the event loop is held no longer than one slice takes. What the
# collector does not accept in time is dropped here and counted: the SDK drops without a count.
#
# Needs the OpenTelemetry SDK.
# --------------------


logger = logging.getLogger(__name__)

#: Spans that are made, and then encoded, at once.
SLICE = 32

#: Longest wait of a finished request for its span, if the collector keeps up.
INTERVAL_S = 1.0

#: Most requests that wait. Further ones are dropped.
QUEUE = 4096

#: Pause after a failed export.
RETRY_AFTER_S = 5.0

#: Time limit for exporting what still waits, at the end of a run and of the process.
FLUSH_S = 5.0


class _TimeIsOverError(BaseException):
    """The time limit has passed; what still waits is abandoned."""


class SpanWriter:
    """Spans of one process."""

    def __init__(self, environment: "Environment", provider: TracerProvider) -> None:
        self._provider = provider
        self._exports = _count_exports(provider)
        self._queue: deque[tuple[RunSpans, Ended]] = deque()
        self._under_way = 0  # spans being exported
        self._over = 0  # finished requests
        self._dropped = 0  # of these, the ones that found the queue full
        self._logged: str | None = None
        self._news = Event()
        self._writing = Semaphore()
        self._log_limit = RateLimiter()
        self._writer = spawn_loop(self._write_forever, "the writing of spans")
        environment.events.test_stop.add_listener(lambda **_: gevent.spawn(self._end))
        environment.events.quit.add_listener(lambda **_: self._leave())

    def tracer(self, run: str, worker: str) -> Trace | None:
        """Tracer of one run's requests; None if OTEL_SDK_DISABLED is set."""
        tracer = self._provider.get_tracer(SCOPE)
        if not isinstance(tracer, Tracer):
            return None
        return partial(self._begin, RunSpans(self._provider.sampler, tracer, run, worker))

    def _begin(
        self, spans: RunSpans, call: Call, target: Target, request: bytes
    ) -> tuple[bytes, Callable[[Answer], None]]:
        request, planned = spans.begin(call, target, request)
        return request, (lambda _: None) if planned is None else partial(self._ended, spans, planned)

    def _ended(self, spans: RunSpans, planned: PlannedSpan, answer: Answer) -> None:
        self._over += 1
        if len(self._queue) < QUEUE:
            self._queue.append((spans, Ended(planned, answer.record, answer.reply.model)))
            if len(self._queue) >= SLICE:
                self._news.set()
            return
        self._dropped += 1
        if self._log_limit.ready():
            logger.warning(
                "OpenTelemetry: %d spans are dropped so far: the collector does not take them fast enough; "
                "have fewer sampled, by OTEL_TRACES_SAMPLER=parentbased_traceidratio and "
                "OTEL_TRACES_SAMPLER_ARG",
                self._dropped,
            )

    # -- writing --------------------------------------------------------------------------

    def _write_forever(self) -> NoReturn:
        while True:
            self._news.wait(INTERVAL_S)
            self._news.clear()
            while self._queue:
                if not self._write_slice():
                    gevent.sleep(RETRY_AFTER_S)

    def _write_slice(self) -> bool:
        """Export the oldest slice after those being exported; return False if that failed."""
        with self._writing:
            failed = self._failed
            waiting = [self._queue.popleft() for _ in range(min(SLICE, len(self._queue)))]
            self._under_way = len(waiting)
            try:
                for spans in dict.fromkeys(of for of, _ in waiting):
                    spans.write([ended for of, ended in waiting if of is spans])
                gevent.sleep(0)
                self._provider.force_flush()
            except Exception:  # from a processor of the user, or from the SDK
                logger.exception("OpenTelemetry: %d spans could not be written", len(waiting))
                return False
            finally:
                self._under_way = 0
            return self._failed == failed

    def _flush(self) -> None:
        """Export what waits, within the time limit and until the first failure."""
        with suppress(_TimeIsOverError), gevent.Timeout(FLUSH_S, _TimeIsOverError):
            while self._write_slice() and self._queue:
                pass

    # -- end --------------------------------------------------------------------------------

    def _end(self) -> None:
        self._flush()
        self._tell()

    def _leave(self) -> None:
        """Flush when the process ends: what is not exported now is lost."""
        self._flush()
        self._queue.clear()
        self._writer.kill()
        self._tell()

    def _tell(self) -> None:
        """Log the counts of the spans, unless they were logged before."""
        waiting, failed = len(self._queue) + self._under_way, self._failed
        exported = min((exports.exported for exports in self._exports), default=0)
        lost = self._over - waiting - exported - failed if self._exports else self._dropped
        fates = ((waiting, "wait"), (failed, "refused by the collector"), (lost, "dropped"))
        words = [f"{exported} spans exported"] if self._exports else []
        words += [f"{number} {fate}" for number, fate in fates if number]
        text = ", ".join(words)
        if self._over and words and text != self._logged:
            self._logged = text
            (logger.warning if failed or lost else logger.info)("OpenTelemetry: %s", text)

    @property
    def _failed(self) -> int:
        return max((exports.failed for exports in self._exports), default=0)


class Exports:
    """An exporter's ``export`` that counts this package's spans by result."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = self.failed = 0
        self._export = exporter.export

    def __call__(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        scopes = [span.instrumentation_scope for span in spans]
        ours = sum(scope is not None and scope.name == SCOPE for scope in scopes)
        try:
            result = self._export(spans)
        except Exception:
            self.failed += ours
            raise
        if result is SpanExportResult.SUCCESS:
            self.exported += ours
        else:
            self.failed += ours
        return result


def processors_of(provider: TracerProvider) -> tuple[object, ...] | None:
    """Processors of a provider; None if the SDK does not expose them."""
    active = vars(provider).get("_active_span_processor")
    return getattr(active, "_span_processors", None)


def _count_exports(provider: TracerProvider) -> list[Exports]:
    """Count the exports of the provider's exporters, as far as the SDK gives access to them."""
    found = []
    for processor in processors_of(provider) or ():
        exporter: Any = getattr(processor, "span_exporter", None)
        if exporter is not None:
            found.append(Exports(exporter))
            vars(exporter)["export"] = found[-1]
    return found

"""Conversion of finished requests to spans, in slices, in the background of the load.

Requests wait in a queue. Every second, or as soon as a slice is full, the spans of one slice are made and
exported, then those of the next. So the event loop is held no longer than one slice takes. What the collector
does not accept in time is dropped here and counted: the SDK drops without a count.

Needs the OpenTelemetry SDK.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import gevent
from gevent.event import Event
from gevent.lock import Semaphore
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.client.stream import Trace
from llm_locust.swarm.process.loops import spawn_loop
from llm_locust.swarm.process.throttle import Throttle
from llm_locust.swarm.tracing.spans import SCOPE, Ended, Prospect, RunSpans

if TYPE_CHECKING:
    from locust.env import Environment

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
        self._told: str | None = None
        self._news = Event()
        self._writing = Semaphore()
        self._may_complain = Throttle()
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
        request, prospect = spans.begin(call, target, request)
        return request, _ignore if prospect is None else partial(self._ended, spans, prospect)

    def _ended(self, spans: RunSpans, prospect: Prospect, answer: Answer) -> None:
        self._over += 1
        if len(self._queue) < QUEUE:
            self._queue.append((spans, Ended(prospect, answer.record, answer.reply.model)))
            if len(self._queue) >= SLICE:
                self._news.set()
            return
        self._dropped += 1
        if self._may_complain():
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
        waiting, exported, failed = len(self._queue) + self._under_way, self._exported, self._failed
        lost = self._over - waiting - exported - failed if self._exports else self._dropped
        fates = ((waiting, "wait"), (failed, "refused by the collector"), (lost, "dropped"))
        parts = [f"{exported} spans exported"] if self._exports else []
        parts += [f"{number} {fate}" for number, fate in fates if number]
        text = ", ".join(parts)
        if self._over and parts and text != self._told:
            self._told = text
            (logger.warning if failed or lost else logger.info)("OpenTelemetry: %s", text)

    @property
    def _failed(self) -> int:
        return max((exports.failed for exports in self._exports), default=0)

    @property
    def _exported(self) -> int:
        return min((exports.exported for exports in self._exports), default=0)


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


def _ignore(_: Answer) -> None:
    """Do nothing: a request that was not sampled has no span."""

"""Locust's ``--otel``: whether the requests of this process are traced, and by what.

Locust sets up the tracer provider before its runners are created. Nothing here imports OpenTelemetry unless
something else has.
"""

import logging
import sys
from typing import TYPE_CHECKING

from locust.env import Environment

from llm_locust.client.call import Trace

if TYPE_CHECKING:
    from llm_locust.swarm.tracing import SpanWriter

logger = logging.getLogger(__name__)

#: Methods of OpenTelemetry's SDK that start threads in each forked process: module, class and name.
_IN_CHILDREN = (
    ("opentelemetry.sdk.trace", "TracerProvider", "_handle_fork"),
    ("opentelemetry.sdk.metrics._internal", "MeterProvider", "_handle_fork"),
    ("opentelemetry.sdk._logs._internal", "LoggerProvider", "_handle_fork"),
    ("opentelemetry.sdk._shared_internal", "BatchProcessor", "_at_fork_reinit"),
    ("opentelemetry.sdk.metrics._internal.export", "PeriodicExportingMetricReader", "_at_fork_reinit"),
)

#: Attribute of an environment that holds its span writer. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_tracing"


def attach_tracing(environment: Environment) -> None:
    """Attach to the tracing of this process, if there is any. Call it when its role is set."""
    if "grpc" in sys.modules:
        _make_grpc_cooperative()
    _keep_threads_out_of_children()
    vars(environment)[_ATTRIBUTE] = _writer(environment)


def tracer_of(environment: Environment, run: str, worker: str) -> Trace | None:
    """Tracer of a run's requests; None if this process has no tracing."""
    writer: SpanWriter | None = vars(environment).get(_ATTRIBUTE)
    if writer is not None:
        return writer.tracer(run, worker)
    if getattr(environment.parsed_options, "otel", False):
        logger.info(
            "--otel: no spans from this process, which has no trace exporter: is llm-locust[otel] "
            "installed here, and OTEL_TRACES_EXPORTER not none?"
        )
    return None


def _writer(environment: Environment) -> "SpanWriter | None":
    """Span writer for the tracer provider of ``--otel`` or the user; None without one that exports."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None  # there is no provider; importing the SDK would take 0.1 s
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import get_tracer_provider

    from llm_locust.swarm.tracing import SpanWriter, processors_of

    provider = get_tracer_provider()
    if not isinstance(provider, TracerProvider) or processors_of(provider) == ():
        return None
    return SpanWriter(environment, provider)


def _keep_threads_out_of_children() -> None:
    """Start no thread of the SDK's in a process that is forked to become another program.

    Under gevent the start of a thread lets the event loop run: in the child the users of this process would
    go on, over its connections, and its heartbeat would spin on a socket that is not the child's. The
    processes of ``--processes`` have been forked, with their threads, when this is called. The SDK's hooks
    hold their functions weakly: without the class's own reference they do nothing.
    """
    for module, owner, method in _IN_CHILDREN:
        kind = getattr(sys.modules.get(module), owner, None)
        if hasattr(kind, method):
            setattr(kind, method, _start_nothing)


def _start_nothing(_of_sdk: object) -> None:
    """In place of a restart."""


def _make_grpc_cooperative() -> None:
    """Let gRPC's calls wait in a thread. Otherwise each export blocks the event loop until it is answered."""
    from grpc.experimental.gevent import init_gevent

    init_gevent()

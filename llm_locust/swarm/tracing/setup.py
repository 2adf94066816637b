"""Locust's ``--otel``: whether the requests of this process are traced, and by what.

Locust sets the tracer provider up before its runners are made. Nothing here imports OpenTelemetry
where nobody else has.
"""

import logging
import sys
from typing import TYPE_CHECKING

from locust.env import Environment

from llm_locust.client.stream import Trace

if TYPE_CHECKING:
    from llm_locust.swarm.tracing.span_writer import SpanWriter

logger = logging.getLogger(__name__)

#: Where an environment keeps its part. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust_tracing"


def attach_tracing(environment: Environment) -> None:
    """Take part in the tracing that this process has, if any. To be called when its side is there."""
    if "grpc" in sys.modules:
        _make_grpc_cooperative()
    vars(environment)[_ATTRIBUTE] = _writer(environment)


def tracer_of(environment: Environment, run: str, worker: str) -> Trace | None:
    """What traces the requests of a run; None where this process has no tracing."""
    writer: SpanWriter | None = vars(environment).get(_ATTRIBUTE)
    if writer is not None:
        return writer.tracer(run, worker)
    if getattr(environment.parsed_options, "otel", False):
        logger.info(
            "--otel: no spans from this process, which has no exporter of traces: is llm-locust[otel] "
            "installed here, and OTEL_TRACES_EXPORTER not none?"
        )
    return None


def _writer(environment: Environment) -> "SpanWriter | None":
    """Of the tracer provider that ``--otel`` or the user's code has set; None without one that exports."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None  # nobody has made one; importing the SDK would cost 0.1 s
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import get_tracer_provider

    from llm_locust.swarm.tracing.span_writer import SpanWriter, processors_of

    provider = get_tracer_provider()
    if not isinstance(provider, TracerProvider) or processors_of(provider) == ():
        return None
    return SpanWriter(environment, provider)


def _make_grpc_cooperative() -> None:
    """Let gRPC's calls wait in a thread. Else each export holds the event loop until it is answered."""
    from grpc.experimental.gevent import init_gevent

    init_gevent()

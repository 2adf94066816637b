"""Programs that a traced process starts: nothing of the load may run between their fork and their start."""

import subprocess
import sys

#: A busy loop beside it, as a user's: what runs in a child writes the child's id.
PROCESS = """
from gevent import monkey
monkey.patch_all()
import os, subprocess, sys
import gevent
from locust.env import Environment
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from llm_locust.swarm.tracing_setup import (attach_tracing)


class Nowhere(MetricExporter):
    def export(self, *args, **kwargs): return MetricExportResult.SUCCESS
    def force_flush(self, *args, **kwargs): return True
    def shutdown(self, *args, **kwargs): pass


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
trace.set_tracer_provider(provider)
metrics = MeterProvider([PeriodicExportingMetricReader(Nowhere())])
if sys.argv[1] == "attached":
    attach_tracing(Environment())


def user():
    while True:
        os.write(1, f"{os.getpid()}\\n".encode())
        gevent.sleep(0)


os.write(1, f"{os.getpid()}\\n".encode())
user = gevent.spawn(user)
gevent.sleep(0.01)
for _ in range(3):
    with gevent.Timeout(20, False):
        subprocess.run(["true"], check=True)
os._exit(0)
"""


def _processes(how: str) -> set[str]:
    """The processes in which the user's loop ran."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, how], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_no_user_runs_in_the_child_of_a_traced_process() -> None:
    assert len(_processes("attached")) == 1

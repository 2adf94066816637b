"""A collector in a process of its own: takes OTLP traces, and writes each span as a line of JSON.

Speaks HTTP, or gRPC with ``--grpc``; answers each export only after ``--delay`` seconds.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def lines_of(request: ExportTraceServiceRequest) -> list[dict[str, Any]]:
    """The spans of one export."""
    found = []
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            of = {"resource": values(resource.resource.attributes), "scope": scope.scope.name}
            found += [line_of(span) | of for span in scope.spans]
    return found


def line_of(span: Span) -> dict[str, Any]:
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": span.status.code,
        "status_text": span.status.message,
        "attributes": values(span.attributes),
        "events": [[event.name, event.time_unix_nano, values(event.attributes)] for event in span.events],
    }


def values(attributes: Any) -> dict[str, Any]:
    return {pair.key: value(pair.value) for pair in attributes}


def value(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    found = getattr(any_value, kind)
    return [value(v) for v in found.values] if kind == "array_value" else found


@dataclass(frozen=True)
class Sink:
    """Where spans go, from several threads."""

    file: Path
    delay_s: float
    lock: Lock = field(default_factory=Lock)

    def take(self, request: ExportTraceServiceRequest) -> None:
        time.sleep(self.delay_s)
        with self.lock, self.file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines_of(request))


def serve_http(sink: Sink) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def serve_grpc(sink: Sink) -> None:
    import grpc  # takes longer than a collector over HTTP has to do
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
        TraceServiceServicer,
        add_TraceServiceServicer_to_server,
    )

    class Servicer(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:  # noqa: N802
            sink.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on http://127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--delay", type=float, default=0)
    options = parser.parse_args()
    options.file.touch()
    sink = Sink(options.file, options.delay)
    serve_grpc(sink) if options.grpc else serve_http(sink)


if __name__ == "__main__":
    main()

"""A collector of traces: a real HTTP server on the loopback interface that reads OTLP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

PATH = "/v1/traces"
WAIT_S = 30.0
SERVER, INTERNAL = 2, 1
"""Kinds of spans in the protocol."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it came; ids are hexadecimal, `process` has the attributes of its process."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    process: dict[str, Any]


class Collector:
    """What has come, and where it comes to. Safe to use from several threads."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}{PATH}"
        self._seen: list[Seen] = []
        self._more = threading.Condition()

    def seen(self) -> list[Seen]:
        """All spans so far."""
        with self._more:
            return list(self._seen)

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Add the spans of a request."""
        with self._more:
            for resource in request.resource_spans:
                process = _values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self._seen.append(
                            Seen(
                                span.name,
                                span.kind,
                                span.trace_id.hex(),
                                span.span_id.hex(),
                                span.parent_span_id.hex(),
                                span.start_time_unix_nano,
                                span.end_time_unix_nano,
                                _values(span.attributes),
                                process,
                            )
                        )
            self._more.notify_all()

    def wait(self, trace_id: str, *names: str) -> dict[str, Seen]:
        """The spans of a trace by their names, once it has these; each name has come once."""
        with self._more:
            assert self._more.wait_for(lambda: set(names) <= self._names(trace_id), WAIT_S), self._seen
            spans = [span for span in self._seen if span.trace_id == trace_id]
        by_name = {span.name: span for span in spans}
        assert len(by_name) == len(spans), spans
        return by_name

    def _names(self, trace_id: str) -> set[str]:
        return {span.name for span in self._seen if span.trace_id == trace_id}


@contextmanager
def open_collector() -> Iterator[Collector]:
    """A collector that listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert (self.path, self.headers["content-type"]) == (PATH, "application/x-protobuf")
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_port)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    return getattr(pair.value, str(pair.value.WhichOneof("value")))

"""An OTLP collector for tests: it receives spans over HTTP, as brokers send them, and keeps them."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class Received:
    name: str
    #: Trace and span ids in hexadecimal; the first span of a trace has an empty parent.
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    service: str
    broker: int
    attributes: dict[str, Any]


class OtlpReceiver:
    """`with OtlpReceiver() as receiver: receiver.endpoint`"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                receiver.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        found = []
        for of_resource in request.resource_spans:
            resource = _plain(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    found.append(
                        Received(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            str(resource["service.name"]),
                            int(resource["messaging.kafka.broker.id"]),
                            _plain(span.attributes),
                        )
                    )
        with self._lock:
            self._spans += found

    def spans(self) -> list[Received]:
        with self._lock:
            return list(self._spans)


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}

"""An OTLP collector for tests: it takes metrics over HTTP, and fails as the test wants."""

import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class MetricsCollector:
    """`with MetricsCollector() as collector: collector.endpoint`"""

    def __init__(self, port: int = 0) -> None:
        #: Status codes of the next responses; then 200.
        self.statuses: deque[int] = deque()
        #: Data points that every response rejects.
        self.rejected_points = 0
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: set[tuple[str, str]] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.add((self.path, self.headers["Content-Type"]))
                status = collector.statuses.popleft() if collector.statuses else 200
                partial = ExportMetricsPartialSuccess(rejected_data_points=collector.rejected_points)
                answer = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
                if status == 200:  # before the answer: a test that knows of the answer finds the request here
                    collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"

    @property
    def names(self) -> list[str]:
        """The names of all metrics, in the order in which they came."""
        return [
            metric.name
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

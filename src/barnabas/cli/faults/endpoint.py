"""The HTTP endpoint for faults: tests in any language ask for them there.

It listens on loopback and wants a token. It passes requests on to the cluster's socket, and the thread that owns the cluster
carries them out.
"""

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from barnabas.cli.local_cluster import ClusterFailed

PATH: Final = "/faults"
#: Sets the token; without it each `barnabas up` makes one.
TOKEN_VARIABLE: Final = "BARNABAS_FAULTS_TOKEN"
TOKEN_LEAST: Final = 8
BODY_BYTES_MAX: Final = 16384
#: For each piece of a request to arrive.
WAIT_S: Final = 10.0
CONNECTIONS_MAX: Final = 16

#: Carries a command out: `{"do": "fault", "action": …}`.
Ask = Callable[..., Any]


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FaultEndpoint:
    """`with FaultEndpoint(ask, port=8089) as endpoint: endpoint.url`"""

    def __init__(self, ask: Ask, *, port: int, token: str | None = None) -> None:
        if token is not None and len(token) < TOKEN_LEAST:
            raise ClusterFailed(f"{TOKEN_VARIABLE} is too short: it needs {TOKEN_LEAST} characters")
        self.token = token or secrets.token_urlsafe(18)
        try:
            self._server = _Server(("127.0.0.1", port), _handler(ask, self.token))
        except OSError as error:
            raise ClusterFailed(f"port {port} cannot be used for faults: {error.strerror}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="faults", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of the cluster."""


def _handler(ask: Ask, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = WAIT_S

        def do_GET(self) -> None:
            self._answer(200, lambda number: _only_all(number, lambda: ask(do="fault", action="list")))

        def do_POST(self) -> None:
            self._answer(
                201, lambda number: _only_all(number, lambda: ask(do="fault", action="add", fault=self._body()))
            )

        def do_DELETE(self) -> None:
            self._answer(200, lambda number: ask(do="fault", action="clear", number=number))

        def _answer(self, status: int, work: Callable[[int | None], Any]) -> None:
            try:
                self._authorize()
                document: object = work(self._number())
            except Refused as refusal:
                status, document = refusal.status, {"error": str(refusal)}
            except ClusterFailed as error:
                status, document = 400, {"error": str(error)}
            data = json.dumps(document).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _authorize(self) -> None:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), token.encode()):
                raise Refused(401, "give the token of `barnabas status --json`: Authorization: Bearer TOKEN")

        def _number(self) -> int | None:
            """Return the number at the end of the path; None if it stands for all faults."""
            path, slash, number = self.path[1:].partition("/")
            if f"/{path}" != PATH or (slash and not (number.isascii() and number.isdecimal() and len(number) < 10)):
                raise Refused(404, f"there are {PATH} and {PATH}/NUMBER")
            return int(number) if slash else None

        def _body(self) -> object:
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdecimal()):
                raise Refused(411, "the request needs a Content-Length")
            if len(length) > 9 or int(length) > BODY_BYTES_MAX:
                raise Refused(413, f"a fault has at most {BODY_BYTES_MAX} bytes")
            try:
                return json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                raise Refused(400, "the body is not JSON") from None

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the brokers log what faults do."""

    return Handler


def _only_all(number: int | None, work: Callable[[], Any]) -> Any:
    if number is not None:
        raise Refused(405, "only DELETE takes the number of a fault")
    return work()

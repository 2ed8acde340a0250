"""The server on real sockets: slow headers and bodies, many idle connections, clients that do not read."""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from barnabas.services.http import protocol
from barnabas.services.http import server as server_module
from barnabas.services.http.server import HttpServer, http_server, listen
from tests.pki import Authority
from tests.threaded_server import DEADLINE_S, ThreadedServer

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the peer's address, after the body unless the path says otherwise."""
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    size = int(scope["path"].removeprefix("/size/")) if scope["path"].startswith("/size/") else 0
    body = scope["client"][0].encode() + b"." * size
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]}
    )
    for at in range(0, len(body), 65_536):
        await send({"type": "http.response.body", "body": body[at : at + 65_536], "more_body": at + 65_536 < len(body)})


class _Service:
    def __init__(self, connections_max: int, certificate: str | None) -> None:
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.server: HttpServer = http_server(
            _application,
            lifespan="off",
            certificate=certificate,
            key=None,
            connections_max=connections_max,
            shutdown_s=1,
        )

    def stop(self) -> None:
        self.server.should_exit = True

    async def run(self, ready: Callable[[], None]) -> None:
        ready()
        await self.server.serve(sockets=[self.socket])


Serve = Callable[..., _Service]


@pytest.fixture(params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    if request.param == "uvloop":
        monkeypatch.setattr(asyncio, "run", uvloop.run)
    with ExitStack() as stack:

        def start(connections_max: int = 20, certificate: str | None = None, **limits_s: float) -> _Service:
            for name, value in limits_s.items():
                monkeypatch.setattr(protocol, name, value)
                if name == "HEAD_S":
                    monkeypatch.setattr(server_module, name, value)
            threaded = ThreadedServer("http", lambda: _Service(connections_max, certificate))
            stack.callback(threaded.stop)
            return threaded.server

        yield start


def connect(service: _Service, first: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S)
    peer.sendall(first)
    return peer


def answer(peer: socket.socket) -> bytes:
    """Return the bytes up to a whole small answer, or to the end."""
    data = b""
    while b"127.0.0.1" not in data:
        part = peer.recv(4096)
        if not part:
            break
        data += part
    return data


def is_closed(peer: socket.socket, within_s: float = DEADLINE_S) -> bool:
    peer.settimeout(within_s)
    try:
        while peer.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def drip(peer: socket.socket, data: bytes, pause_s: float = 0.05) -> bool:
    """Send byte by byte; return whether the server closed the connection meanwhile."""
    for at in range(len(data)):
        try:
            peer.sendall(data[at : at + 1])
        except ConnectionError:
            return True
        time.sleep(pause_s)
    return is_closed(peer, 0.5)


def test_a_connection_serves_many_requests(serve: Serve) -> None:
    with connect(serve()) as peer:
        for _ in range(3):
            peer.sendall(GET)
            assert answer(peer).startswith(b"HTTP/1.1 200")
        peer.sendall(GET * 4)
        data = b""
        while data.count(b"HTTP/1.1 200") < 4:
            data += peer.recv(4096)


@pytest.mark.parametrize("first", [b"", b"GET", GET[:-2]])
def test_a_connection_without_a_whole_head_is_closed(serve: Serve, first: bytes) -> None:
    with connect(serve(HEAD_S=0.3), first) as peer:
        assert is_closed(peer)


def test_bytes_of_a_head_do_not_prolong_its_time(serve: Serve) -> None:
    with connect(serve(HEAD_S=0.3)) as peer:
        assert drip(peer, b"GET / HTTP/1.1\r\nX: " + b"a" * 100)


def test_bytes_of_the_next_head_do_not_prolong_its_time(serve: Serve) -> None:
    with connect(serve(HEAD_S=0.3), GET) as peer:
        assert answer(peer)
        assert drip(peer, b"GET / HTTP/1.1\r\nX: " + b"a" * 100)


def test_a_body_that_goes_on_after_the_answer_does_not_hold_its_connection(serve: Serve) -> None:
    with connect(serve(HEAD_S=0.3), b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n") as peer:
        assert answer(peer).startswith(b"HTTP/1.1 200")
        assert drip(peer, b"a" * 100)


def test_an_idle_connection_is_kept_for_a_while(serve: Serve) -> None:
    with connect(serve(HEAD_S=0.2, KEEP_ALIVE_S=1.0), GET) as peer:
        assert answer(peer)
        assert not is_closed(peer, 0.5)
        assert is_closed(peer)


def test_a_client_that_does_not_read_is_left(serve: Serve) -> None:
    service = serve(STALL_S=0.3)
    with connect(service, GET.replace(b"/", b"/size/30000000", 1)):
        deadline = time.monotonic() + DEADLINE_S
        while not len(service.server.connections):
            assert time.monotonic() < deadline
        while len(service.server.connections):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_client_that_reads_slowly_gets_everything(serve: Serve) -> None:
    with connect(serve(STALL_S=1.0), GET.replace(b"/", b"/size/3000000", 1)) as peer:
        received = 0
        while received < 3_000_000:
            part = peer.recv(100_000)
            assert part
            received += len(part)
            time.sleep(0.02)


@pytest.mark.parametrize("first", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", GET])
def test_idle_connections_do_not_lock_others_out(serve: Serve, first: bytes) -> None:
    service = serve()
    with ExitStack() as stack:
        for _ in range(1_000):
            stack.enter_context(connect(service, first))
        with connect(service, GET) as peer:
            assert answer(peer).startswith(b"HTTP/1.1 200")
        assert len(service.server.connections) <= service.server.connections.most_by_address


def test_half_tls_handshakes_do_not_lock_others_out(serve: Serve, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    service = serve(certificate=str(authority.issue("http", subject="/CN=localhost")), HEAD_S=5.0)
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    with ExitStack() as stack:
        idle = [
            stack.enter_context(connect(service, first)) for first in (b"", b"\x16\x03\x01\x02\x00") for _ in range(100)
        ]
        with trust.wrap_socket(connect(service), server_hostname="localhost") as peer:
            peer.sendall(GET)
            assert answer(peer).startswith(b"HTTP/1.1 200")
        assert is_closed(idle[-1])
    deadline = time.monotonic() + DEADLINE_S
    while len(service.server.connections):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_header_says_where_a_request_comes_from(serve: Serve) -> None:
    forged = GET.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n")
    with connect(serve(), forged) as peer:
        assert answer(peer).endswith(b"127.0.0.1")


def test_a_stop_ends_what_is_idle_and_finishes_what_is_served(serve: Serve) -> None:
    service = serve()
    with connect(service) as new, connect(service, GET) as rested:
        assert answer(rested)
        service.stop()
        assert is_closed(new) and is_closed(rested)


POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"\x16\x03\x01", [400]),
        (GET + b"\0\0\r\n\r\n", [200, 400]),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET, [200]),
        (POST + b"zz\r\n", [400]),
        (POST.replace(b"/", b"/early", 1), [200]),
        (POST.replace(b"/", b"/early", 1) + b"zz\r\n", [400]),
    ],
)
def test_bytes_that_are_not_http_end_a_connection_and_fill_no_log(
    serve: Serve, sent: bytes, statuses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with connect(serve(), sent) as peer:
        data = answer(peer) if statuses[0] == 200 else b""
        if statuses == [200] and b"early" in sent:
            peer.sendall(b"zz\r\n")
        peer.settimeout(DEADLINE_S)
        with suppress(ConnectionError):
            while part := peer.recv(4096):
                data += part
    assert [int(each) for each in re.findall(rb"HTTP/1.1 (\d{3})", data)] == statuses
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]

"""Documents from the web: whatever a server sends, a failure is a `WebFailed`."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from barnabas.client.web import WebFailed, load


@pytest.fixture
def answers() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server, and its next answers."""
    said: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            peer, _ = server.accept()
            with peer:
                if peer.recv(65536) and said:
                    peer.sendall(said.pop(0))
                else:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    host, port = server.getsockname()
    yield f"http://{host}:{port}/keys", said
    said.clear()
    socket.create_connection((host, port)).close()
    thread.join()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"what is this\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["no http", "short", "chunks", "headers", "short error"],
)
def test_invalid_http_response_fails_like_a_missing_one(answers: tuple[str, list[bytes]], answer: bytes) -> None:
    url, said = answers
    said.append(answer)
    with pytest.raises(WebFailed, match=r"127\.0\.0\.1"):
        load(url)


def test_reason_of_a_failure_is_kept_and_bounded(answers: tuple[str, list[bytes]]) -> None:
    url, said = answers
    said.append(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000)
    with pytest.raises(WebFailed) as failed:
        load(url)
    assert failed.value.is_final
    assert 0 < len(failed.value.document) <= 16 * 1024
    assert "xxx" not in str(failed.value)


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"", r"no whole answer within 0\.6 s"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", r"no whole answer within 0\.6 s"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n", "answered 500"),
    ],
    ids=["head", "body", "reason of a failure"],
)
def test_server_that_sends_a_byte_now_and_then_is_not_waited_for_longer_than_a_whole_answer_may_take(
    begin: bytes, words: str
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def drip() -> None:
        peer, _ = server.accept()
        with peer, suppress(OSError):
            peer.sendall(begin)
            while not is_over.wait(0.1):
                peer.sendall(b"H")

    thread = threading.Thread(target=drip)
    thread.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(WebFailed, match=words):
            load("http://{}:{}/keys".format(*server.getsockname()), timeout_ms=200)
        assert time.monotonic() - began_s < 20
    finally:
        is_over.set()
        thread.join()
        server.close()

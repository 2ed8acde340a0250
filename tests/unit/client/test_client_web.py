"""Documents from the web: whatever a server sends, a failure is a `WebFailed`."""

import socket
import threading
from collections.abc import Iterator

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

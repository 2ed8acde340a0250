"""Clients of a registry that answers with too much, too slowly, or with a redirect: those of the tools and of Spark."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from barnabas.client.registry import RegistryClient, RegistryUnreachable
from barnabas.spark.pipelines.codecs import registry as spark
from barnabas.spark.pipelines.codecs.registry import RegistryRefused, RegistryUnavailable, SchemaRegistry


class Hostile:
    """Answers each request with the same bytes, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answer = b""
        self.drips = False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            if self._is_over.is_set():
                peer.close()
                return
            with peer, suppress(OSError):
                self.asked.append(peer.recv(65_536))
                peer.sendall(self.answer)
                while self.drips and not self._is_over.wait(0.02):
                    peer.sendall(b" ")

    def says(self, body: bytes, *, status: str = "200 OK", length: int | None = None, header: str = "") -> None:
        size = len(body) if length is None else length
        self.answer = (
            f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{header}\r\n".encode() + body
        )

    def stop(self) -> None:
        self._is_over.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Hostile]:
    hostile = Hostile()
    yield hostile
    hostile.stop()


def of_spark(server: Hostile) -> SchemaRegistry:
    return SchemaRegistry(server.url, user_info="user:secret", retries=0, timeout_ms=200)


def test_answer_longer_than_its_bound_is_refused(server: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "SCHEMA_BYTES_MAX", 1_000)
    server.says(b'["' + b"x" * 2_000 + b'"]')
    with pytest.raises(RegistryUnreachable, match="longer than 1000 bytes"):
        RegistryClient(server.url, answer_bytes_max=1_000).ask("GET", "subjects")
    with pytest.raises(RegistryRefused, match="longer than 1000 bytes"):
        of_spark(server).latest("s")


def test_compressed_answer_is_not_decompressed(server: Hostile) -> None:
    server.says(gzip.compress(json.dumps(["x" * 1_000_000]).encode()), header="Content-Encoding: gzip\r\n")
    with pytest.raises(RegistryUnreachable, match="not with JSON"):
        RegistryClient(server.url).ask("GET", "subjects")
    assert b"accept-encoding: identity" in server.asked[-1].lower()


def test_answer_that_nests_too_deep_is_refused(server: Hostile) -> None:
    server.says(b"[" * 100_000)
    with pytest.raises(RegistryUnreachable, match="not with JSON"):
        RegistryClient(server.url).ask("GET", "subjects")
    with pytest.raises(RegistryRefused, match="is it a registry"):
        of_spark(server).latest("s")


def test_answer_that_comes_byte_by_byte_ends_after_a_while(server: Hostile) -> None:
    server.drips = True
    server.says(b"", length=1_000_000)
    began_s = time.monotonic()
    with pytest.raises(RegistryUnreachable, match=r"no whole answer within 0\.3 s"):
        RegistryClient(server.url, timeout_ms=100).ask("GET", "subjects")
    with pytest.raises(RegistryUnavailable, match="no whole answer"):
        of_spark(server).latest("s")
    assert time.monotonic() - began_s < 30


def test_secret_does_not_follow_a_redirect(server: Hostile) -> None:
    server.says(b"", status="302 Found", header=f"Location: {server.url}/elsewhere\r\n")
    with pytest.raises(RegistryRefused, match="302"):
        of_spark(server).latest("s")
    assert len(server.asked) == 1 and b"Authorization: Basic" in server.asked[0]

"""A registry that lies to its clients, Spark's and the console's: long answers, deep ones, redirects, endless references."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from barnabas.client.registry import RegistryClient, RegistryUnreachable
from barnabas.services.registry import references
from barnabas.spark.pipelines.codecs import registry
from barnabas.spark.pipelines.codecs.registry import RegistryRefused, SchemaRegistry


class Liar(BaseHTTPRequestHandler):
    #: By path: status, headers, body.
    answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        status, headers, body = self.answers.get(self.path, (200, {}, endless(self.path)))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def endless(path: str) -> bytes:
    """Each schema refers to two others, which are new."""
    number = int("".join(filter(str.isdigit, path)) or 0) * 2
    references = [{"name": f"n{at}", "subject": f"s{at}", "version": 1} for at in (number, number + 1)]
    return json.dumps({"schema": '"int"', "references": references}).encode()


@pytest.fixture
def url() -> Iterator[str]:
    Liar.answers, Liar.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_spark_reads_no_endless_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMA_BYTES_MAX", 1_000)
    Liar.answers["/schemas/ids/1"] = (200, {}, b'{"schema": "' + b"x" * 2_000 + b'"}')
    with pytest.raises(RegistryRefused, match="longer than 1000 bytes"):
        SchemaRegistry(url).schema(1)


@pytest.mark.parametrize("status", [200, 404, 400])
def test_spark_reads_no_deep_answer(url: str, status: int) -> None:
    Liar.answers["/schemas/ids/2"] = (status, {}, b"[" * 10_000)
    with pytest.raises(registry.RegistryError):
        SchemaRegistry(url, retries=0).schema(2)


def test_spark_takes_its_password_to_no_other_host(url: str) -> None:
    Liar.answers["/schemas/ids/3"] = (302, {"Location": f"{url}/elsewhere"}, b"")
    with pytest.raises(RegistryRefused, match="302"):
        SchemaRegistry(url, user_info="me:secret").schema(3)
    assert [path for path, _ in Liar.asked] == ["/schemas/ids/3"]


def test_spark_follows_no_endless_references(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "REFERENCES_MAX", 30)
    lying = SchemaRegistry(url)
    with pytest.raises(RegistryRefused, match="more than 30 schemas"):
        lying.resolve(lying.schema(4))
    assert len(Liar.asked) < 40


def test_schemas_that_many_import_are_asked_for_and_kept_once(url: str) -> None:
    def refers(*names: int) -> tuple[int, dict[str, str], bytes]:
        references = [{"name": f"m{at}", "subject": f"m{at}", "version": 1} for at in names]
        return 200, {}, json.dumps({"schema": '"int"', "references": references}).encode()

    for at in range(40):  # 2**40 ways lead to the last
        Liar.answers[f"/subjects/m{at}/versions/1"] = refers(at + 1, at + 2) if at < 38 else refers()
    Liar.answers["/schemas/ids/5"] = refers(0)
    lying = SchemaRegistry(url)
    assert list(lying.references(lying.schema(5)))[-1] == "m0" and len(Liar.asked) == 41


@pytest.mark.parametrize("body", [b"[" * 10_000, b"[" * 300 + b"]" * 300, b"x" * 3_000, b"{}"])
def test_the_console_reads_no_endless_or_deep_answer(url: str, body: bytes) -> None:
    Liar.answers["/subjects"] = (200, {}, body)
    asking = RegistryClient(url, answer_bytes_max=1_000)
    if body == b"{}":
        assert asking.ask("GET", "subjects") == {}
        return
    with pytest.raises(RegistryUnreachable, match=r"1000 bytes|is it a registry"):
        asking.ask("GET", "subjects")

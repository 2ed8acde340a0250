"""The client of schema registries: the instances that it asks, its requests, and how it reads answers."""

import gc
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.base.errors import ConfigError
from barnabas.client.registry import RegistryClient, RegistryRefused, RegistryUnreachable

NOWHERE = "http://127.0.0.1:1"


class Instance(ThreadingHTTPServer):
    """Answers each request with `status` and `document`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.status = 200
        self.document: Any = ["orders-value"]
        self.breaks_off = False
        #: Method, path, headers and body.
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        server = cast(Instance, self.server)
        size = int(self.headers.get("Content-Length", 0))
        server.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(size)))
        if server.breaks_off:
            return
        data = server.document if isinstance(server.document, bytes) else json.dumps(server.document).encode()
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def instances() -> Iterator[tuple[Instance, Instance]]:
    both = Instance(), Instance()
    threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in both]
    for thread in threads:
        thread.start()
    yield both
    for each, thread in zip(both, threads, strict=True):
        each.shutdown()
        thread.join()
        each.server_close()


def of(instances: tuple[Instance, Instance], **settings: Any) -> RegistryClient:
    return RegistryClient(f"{instances[0].url}, {instances[1].url}/", **settings)


def test_request_has_its_method_quoted_path_query_body_and_credentials(instances: tuple[Instance, Instance]) -> None:
    client = of(instances, user="ann:s:crét")
    assert client.ask("PUT", "config", "a/b ü", body={"x": "é"}, deleted=True, none=None) == ["orders-value"]
    method, path, headers, body = instances[0].asked[0]
    assert (method, path, json.loads(body)) == ("PUT", "/config/a%2Fb%20%C3%BC?deleted=true", {"x": "é"})
    assert headers["Authorization"] == "Basic YW5uOnM6Y3LDqXQ="
    assert headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    of(instances, token="t").ask("GET", "subjects")
    assert instances[0].asked[1][2]["Authorization"] == "Bearer t"
    assert client.signs_in and not of(instances).signs_in
    assert "s:cr" not in repr(client)


def test_next_instance_is_asked_if_one_cannot_be_reached(instances: tuple[Instance, Instance]) -> None:
    client = RegistryClient(f"{NOWHERE},{instances[0].url}")
    assert client.ask("POST", "subjects", "s", "versions", body={}) == ["orders-value"]


@pytest.mark.parametrize("status", [404, 500, 503])
def test_read_goes_on_to_the_next_instance_after_an_answer_that_says_nothing(
    instances: tuple[Instance, Instance], status: int
) -> None:
    instances[0].status, instances[0].document = status, b"<html>"
    assert of(instances).ask("GET", "subjects") == ["orders-value"]
    instances[0].document = {"error_code": status, "message": "not now"}
    assert of(instances).ask("GET", "subjects") == ["orders-value"]


@pytest.mark.parametrize("breaks_off", [True, False])
def test_write_that_one_instance_may_have_carried_out_is_not_sent_to_another(
    instances: tuple[Instance, Instance], breaks_off: bool
) -> None:
    instances[0].status, instances[0].document, instances[0].breaks_off = 500, {"error_code": 50001}, breaks_off
    with pytest.raises(RegistryUnreachable if breaks_off else RegistryRefused):
        of(instances).ask("DELETE", "subjects", "s")
    assert instances[1].asked == []
    assert of(instances, may_repeat=True).ask("DELETE", "subjects", "s") == ["orders-value"]


def test_refusal_is_final_and_names_code_and_reason(instances: tuple[Instance, Instance]) -> None:
    instances[0].status, instances[0].document = 404, {"error_code": 40401, "message": "Subject 's' not found."}
    with pytest.raises(RegistryRefused, match=r"^Subject 's' not found\. \(error code 40401\)$") as refused:
        of(instances).ask("GET", "subjects", "s", "versions")
    assert (refused.value.status, refused.value.code, refused.value.is_unknown) == (404, 40401, True)
    assert not refused.value.is_transient
    assert instances[1].asked == []


def test_refusal_that_quotes_a_large_schema_is_kept_whole(instances: tuple[Instance, Instance]) -> None:
    instances[0].status, instances[0].document = 409, {"error_code": 409, "message": "x" * 100_000}
    with pytest.raises(RegistryRefused) as refused:
        of(instances).ask("POST", "subjects", "s", "versions", body={})
    assert len(refused.value.reason) == 100_000


def test_answer_of_a_registry_is_reported_rather_than_an_instance_that_is_away(
    instances: tuple[Instance, Instance],
) -> None:
    instances[0].status, instances[0].document = 503, {"error_code": 50003, "message": "no primary"}
    with pytest.raises(RegistryRefused, match="no primary"):
        RegistryClient(f"{instances[0].url},{NOWHERE}").ask("GET", "subjects")
    with pytest.raises(RegistryUnreachable, match=rf"no registry can be reached: {NOWHERE}: Connection refused"):
        RegistryClient(NOWHERE).ask("GET", "subjects")


@pytest.mark.parametrize(
    "answer", [{"error_code": "x", "message": None}, ["?"], 5], ids=["odd members", "list", "number"]
)
def test_error_without_code_or_message_is_a_refusal_with_its_status(
    instances: tuple[Instance, Instance], answer: object
) -> None:
    instances[0].status, instances[0].document = 422, answer
    with pytest.raises(RegistryRefused, match=r"the registry answers 422 \(error code 422\)"):
        of(instances).ask("GET", "subjects")


# Python 3.11 does not close the response of a proxy that opens no tunnel.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_proxy_of_the_environment_reads_no_password(
    instances: tuple[Instance, Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, registry = instances
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    assert RegistryClient(registry.url, user="ann:secret").ask("GET", "subjects") == ["orders-value"]
    assert proxy.asked == []
    with pytest.raises(RegistryUnreachable, match="Tunnel connection failed"):
        RegistryClient("https://registry.invalid", user="ann:secret").ask("GET", "subjects")
    gc.collect()


def test_client_travels_and_compares_by_its_settings() -> None:
    client = RegistryClient(NOWHERE, token="t", timeout_ms=5)
    assert pickle.loads(pickle.dumps(client)) == client
    assert hash(client) == hash(RegistryClient(NOWHERE, token="t", timeout_ms=5))


@pytest.mark.parametrize("url", ["", " , ", "localhost:8081", "file:///etc/passwd", f"{NOWHERE},ftp://x"])
def test_address_that_is_not_one_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a registry"):
        RegistryClient(url)


def test_file_that_cannot_be_read_is_refused_when_the_settings_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        RegistryClient.from_config("https://localhost", {"ssl.ca.location": str(tmp_path / "missing.pem")})

"""Requests that other sites make a browser send, and the page's security headers."""

import asyncio
from typing import Any

import pytest

from barnabas.base.hosts import is_loopback
from barnabas.client.config import client_config
from barnabas.services.console.gate import Gate
from barnabas.services.console.settings import Settings

LOCAL = {"host": "127.0.0.1:8080"}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(
    method: str, path: str, headers: dict[str, str], *, properties: dict[str, str] | None = None, **settings: Any
) -> tuple[int, dict[str, str]]:
    gate = Gate(_app, Settings(client=client_config("localhost:9092", properties or {}), **settings))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    bare, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": bare, "raw_path": bare.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080", "127.9.9.9", "localhost."]
)
def test_names_of_loopback_are_served(host: str) -> None:
    assert ask("GET", "/api/topics", {"host": host})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8080", "", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:8080", "[::", "192.0.2.1",
             "evil.example#localhost", "user@evil.example", "localhost@evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/topics", "/static/app.js"])
def test_a_name_that_was_bound_to_loopback_is_refused(host: str, path: str) -> None:
    assert ask("GET", path, {"host": host})[0] == 421


def test_a_request_without_a_name_is_refused() -> None:
    assert ask("GET", "/", {})[0] == 421


def test_with_sign_in_every_host_name_is_served() -> None:
    sasl = {"security.protocol": "SASL_SSL"}
    assert ask("GET", "/", {"host": "kafka.example"}, properties=sasl, host="0.0.0.0", certificate="c")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:8080", "http://127.0.0.1:8081", "http://127.0.0.1", ""]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "GET"])
def test_the_api_answers_no_page_of_another_origin(method: str, origin: str) -> None:
    assert ask(method, "/api/topics", {**LOCAL, "origin": origin})[0] == 403


def test_the_consoles_own_page_may_change_things() -> None:
    own = {**LOCAL, "origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert ask("POST", "/api/topics", own)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_fetch_nothing_of_the_api(site: str) -> None:
    headers = {**LOCAL, "sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert ask("GET", "/api/events?watch=/api/topics", headers)[0] == 403


def test_a_link_from_elsewhere_opens_the_page() -> None:
    headers = {**LOCAL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert ask("GET", "/topics/orders", headers)[0] == 200


@pytest.mark.parametrize(("path", "headers"), [("/", LOCAL), ("/api/topics", LOCAL), ("/", {"host": "evil.example"})])
def test_every_answer_binds_the_page(path: str, headers: dict[str, str]) -> None:
    _, found = ask("GET", path, headers)
    policy = dict(part.strip().split(" ", 1) for part in found["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in found["content-security-policy"]
    assert found["x-content-type-options"] == "nosniff"
    assert found["x-frame-options"] == "DENY"
    assert found["referrer-policy"] == "no-referrer"
    assert found["cross-origin-resource-policy"] == "same-origin"


def test_answers_of_the_api_are_kept_nowhere() -> None:
    assert ask("GET", "/api/topics", LOCAL)[1]["cache-control"] == "no-store"
    assert "cache-control" not in ask("GET", "/static/app.js", LOCAL)[1]


def test_https_is_remembered() -> None:
    sasl = {"security.protocol": "SASL_SSL"}
    _, found = ask("GET", "/", {"host": "kafka.example"}, properties=sasl, host="0.0.0.0", certificate="c")
    assert found["strict-transport-security"].startswith("max-age=")
    assert "strict-transport-security" not in ask("GET", "/", LOCAL)[1]


def test_an_address_without_end_is_refused() -> None:
    assert ask("GET", "/api/topics?search=" + "a" * 20_000, LOCAL)[0] == 414


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("console.localhost", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("", False), ("mylocalhost", False), ("192.0.2.1", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected

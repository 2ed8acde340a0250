"""Bodies, origins and peers: checks that every service makes before it handles a request."""

import asyncio
from typing import Any

import pytest

from barnabas.services.http.bodies import check_content_type, json_object, read_body
from barnabas.services.http.errors import Refusal
from barnabas.services.http.origins import check_host, check_origin
from barnabas.services.http.peers import peer_address

PEER = ("127.0.0.1", 4711)


def read(*parts: bytes, headers: dict[str, str] | None = None, ends: bool = True) -> bytes:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request" if ends else "http.disconnect"})

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    return asyncio.run(read_body(headers or {}, receive, bytes_max=10, timeout_s=1))


def test_a_body_comes_in_parts() -> None:
    assert read(b"abc", b"defg", b"hij") == b"abcdefghij"


@pytest.mark.parametrize(
    ("parts", "headers"),
    [((b"abcdef", b"ghijk"), {}), ((), {"content-length": "11"}), ((), {"content-length": "9" * 30})],
)
def test_a_body_is_bounded(parts: tuple[bytes, ...], headers: dict[str, str]) -> None:
    with pytest.raises(Refusal) as refused:
        read(*parts, headers=headers)
    assert refused.value.status == 413


def test_a_body_has_to_arrive_in_time() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(Refusal) as refused:
        asyncio.run(read_body({}, receive, bytes_max=10, timeout_s=0.1))
    assert refused.value.status == 408


def test_a_client_that_goes_away_ends_its_request() -> None:
    with pytest.raises(Refusal):
        read(b"abc", ends=False)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"7", b"\xff", b'{"a":NaN}', b'{"a":-Infinity}', b"[" * 100_000, b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
     b'{"a":' + b"9" * 10_000 + b"}"],
)  # fmt: skip
def test_a_body_without_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        json_object(body)
    assert refused.value.status == 400


def test_a_json_object_is_read() -> None:
    assert json_object(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


@pytest.mark.parametrize("sent", ["application/json", "Application/JSON; charset=utf-8", " application/json "])
def test_content_type_of_json(sent: str) -> None:
    check_content_type({"content-type": sent}, ("application/json",))


@pytest.mark.parametrize(
    "sent", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x=application/json"]
)
def test_content_types_that_a_page_may_send_without_asking(sent: str | None) -> None:
    with pytest.raises(Refusal) as refused:
        check_content_type({} if sent is None else {"content-type": sent}, ("application/json",))
    assert refused.value.status == 415


def test_hosts() -> None:
    for host in ("localhost:8081", "127.0.0.1", "[::1]:8081", "registry.example:8081"):
        check_host({"host": host}, {"registry.example"})
    for host in ("evil.example", "", "registry.example.evil", "localhost.evil.example", "192.0.2.1"):
        with pytest.raises(Refusal):
            check_host({"host": host}, {"registry.example"})


def test_origins() -> None:
    check_origin({"host": "localhost:8081"})
    check_origin({"host": "localhost:8081", "origin": "http://localhost:8081", "sec-fetch-site": "same-origin"})
    for odd in (
        "http://evil.example",
        "null",
        "",
        "http://localhost:8080",
        "http://localhost",
        "http://[",
        "http://[::1",
    ):
        with pytest.raises(Refusal):
            check_origin({"host": "localhost:8081", "origin": odd})
    for site in ("cross-site", "same-site", "anything"):
        with pytest.raises(Refusal):
            check_origin({"host": "localhost:8081", "sec-fetch-site": site})


@pytest.mark.parametrize(
    ("fields", "behind_proxy", "expected"),
    [
        (["203.0.113.9"], False, "127.0.0.1"),
        (["203.0.113.9"], True, "203.0.113.9"),
        (["10.0.0.1, 203.0.113.9"], True, "203.0.113.9"),
        (["10.0.0.1", "203.0.113.9"], True, "203.0.113.9"),
        (["2001:db8::1"], True, "2001:db8::1"),
        (["[2001:db8::1]"], True, "2001:db8::1"),
        ([], True, "127.0.0.1"),
        (["203.0.113.9, "], True, "127.0.0.1"),
        (['1.2.3.4 user="admin" does=nothing'], True, "127.0.0.1"),
        (["1.2.3.4\tx"], True, "127.0.0.1"),
        (["unknown"], True, "127.0.0.1"),
    ],
)
def test_the_last_address_counts_where_a_proxy_is_named(fields: list[str], behind_proxy: bool, expected: str) -> None:
    assert peer_address(PEER, fields, behind_proxy=behind_proxy) == expected


def test_peer_without_an_address() -> None:
    assert peer_address(None, [], behind_proxy=False) == "unknown"

"""The console watches a bounded number of things, and refuses a page that wants one more."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from barnabas.services.console import collector, events
from barnabas.services.console.collector import Collector
from barnabas.services.console.errors import Refusal
from barnabas.services.console.services import Tasks
from barnabas.services.console.web import Call, Endpoint, User


async def _answer(call: Call) -> str:
    return "answer"


def call(watched: Collector, *paths: str) -> Call:
    endpoint = Endpoint(method="GET", path="/things/{name}", handler=_answer, summary="", live_s=60)
    services: Any = SimpleNamespace(live={"/things/{name}": endpoint})
    request: Any = SimpleNamespace(query_params=QueryParams([("watch", path) for path in paths]))
    return Call(services=services, user=User("u", SimpleNamespace(collector=watched)), request=request)  # type: ignore[arg-type]


def test_one_thing_too_many_is_refused_before_the_stream_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "WATCHED_MAX", 2)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await check(Collector(Tasks(group)))

    async def check(watched: Collector) -> None:
        stream = (await events.events(call(watched, "/api/things/a", "/api/things/b"))).body_iterator
        assert await anext(stream) == b": hello\n\n"
        with pytest.raises(Refusal) as refused:
            await events.events(call(watched, "/api/things/c"))
        assert refused.value.status == 429
        await events.events(call(watched, "/api/things/a"))  # no other thing than those
        await stream.aclose()  # type: ignore[attr-defined]
        watched.stop()

    asyncio.run(run())


def test_the_second_of_two_pages_at_once_is_refused_in_its_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collector, "WATCHED_MAX", 2)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await check(Collector(Tasks(group)))

    async def check(watched: Collector) -> None:
        first = (await events.events(call(watched, "/api/things/a", "/api/things/b"))).body_iterator
        second = (await events.events(call(watched, "/api/things/c"))).body_iterator
        assert await anext(first) == b": hello\n\n"
        (refusal,) = [each async for each in second]
        assert bytes(refusal).startswith(b"event: failed\ndata: ")  # type: ignore[arg-type]
        assert json.loads(bytes(refusal).partition(b"data: ")[2])["error"]["code"] == "TOO_MANY"  # type: ignore[arg-type]
        await first.aclose()  # type: ignore[attr-defined]
        watched.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not caplog.records

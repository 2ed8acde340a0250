"""One broker for all tests of a process, and its console on a thread."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from barnabas.client.config import client_config
from barnabas.services.console.server import ConsoleServer
from barnabas.services.console.settings import Settings
from barnabas.testing import Cluster
from tests.threaded_server import DEADLINE_S, ThreadedServer

_numbers = itertools.count(1)


class Console(ThreadedServer[ConsoleServer]):
    """A console in a thread of its own, and a client for it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("console", lambda: ConsoleServer(settings))
        self.http = httpx.Client(base_url=self.server.url, timeout=DEADLINE_S, trust_env=False)
        if not settings.needs_sign_in:
            self.http.headers["x-csrf-token"] = self.get("/api/session")["csrfToken"]

    def stop(self) -> None:
        self.http.close()
        super().stop()

    def get(self, path: str, /, **query: Any) -> Any:
        return answer_of(self.http.get(path, params=query))

    def change(self, method: str, path: str, body: Any = None) -> Any:
        return answer_of(self.http.request(method, path, json=body))

    @contextmanager
    def watching(self, *paths: str) -> Iterator[Iterator[tuple[str, str]]]:
        """(event, data) of the event stream, as they come."""
        with self.http.stream("GET", "/api/events", params=[("watch", path) for path in paths]) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response)


def answer_of(response: httpx.Response) -> Any:
    """The JSON of a success; (status, code, message) of a refusal."""
    document = response.json()
    if response.status_code == 200:
        return document
    assert document.keys() == {"error"} and document["error"].keys() == {"code", "message"}, document
    return response.status_code, document["error"]["code"], document["error"]["message"]


def events_of(response: httpx.Response) -> Iterator[tuple[str, str]]:
    event = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, line.removeprefix("data: ")


def eventually(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Wait: an answer may be as old as the cached answers that it consists of."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = ask()
        if holds(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@contextmanager
def running(cluster: Any, **settings: Any) -> Iterator[Console]:
    console = Console(Settings(client=client_config(cluster.bootstrap), port=0, **settings))
    try:
        yield console
    finally:
        console.stop()


@pytest.fixture(scope="session")
def console(cluster: Cluster) -> Iterator[Console]:
    with running(cluster, read_write=True) as console:
        yield console


@pytest.fixture(scope="session")
def reading_console(cluster: Cluster) -> Iterator[Console]:
    """As it is without --read-write."""
    with running(cluster) as console:
        yield console


@pytest.fixture
def topic(cluster: Cluster) -> Callable[..., str]:
    """New topics, which no other test uses."""

    def make(**more: Any) -> str:
        name = f"console-{next(_numbers)}"
        cluster.create_topic(name, **more)
        return name

    return make

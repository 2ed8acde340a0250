"""One broker for all tests of a process; registries run in threads, each on a topic and in a group of its own."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httpx
import pytest

from barnabas.client.config import client_config
from barnabas.services.registry.server import RegistryServer, ServerConfig
from barnabas.testing import Cluster
from tests.threaded_server import DEADLINE_S, ThreadedServer

#: A busy machine must not change what a test sees: no member is removed from a group, no read times out.
PATIENT = {
    "session_timeout_ms": 45_000,
    "heartbeat_interval_ms": 500,
    "write_timeout_ms": 60_000,
    "read_timeout_ms": 60_000,
}
HEADERS = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
_numbers = itertools.count(1)


class Registry(ThreadedServer[RegistryServer]):
    """A registry in a thread of its own, and a client for it."""

    def __init__(self, config: ServerConfig, *, headers: dict[str, str] | None = None, verify: Any = True) -> None:
        self.config = config
        super().__init__("registry", lambda: RegistryServer(config))
        self.url = self.server.url
        self.http = httpx.Client(
            base_url=self.url, headers=HEADERS | (headers or {}), timeout=DEADLINE_S, trust_env=False, verify=verify
        )

    def stop(self) -> None:
        self.http.close()
        super().stop()

    @property
    def is_primary(self) -> bool:
        return self.server.node.is_primary

    # -- requests -------------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: Any) -> Any:
        return _answer(self.http.get(path, params=query))

    def delete(self, path: str, **query: Any) -> Any:
        return _answer(self.http.delete(path, params=query))

    def put(self, path: str, body: Any, **query: Any) -> Any:
        return _answer(self.http.put(path, json=body, params=query))

    def post(self, path: str, body: Any, **query: Any) -> Any:
        return _answer(self.http.post(path, json=body, params=query))

    def register(self, subject: str, schema: str, /, *, query: dict[str, Any] | None = None, **more: Any) -> Any:
        return self.post(f"/subjects/{subject}/versions", {"schema": schema, **more}, **(query or {}))


def _answer(response: httpx.Response) -> Any:
    """The JSON of a success; `(status, code, message)` of a refusal."""
    document = response.json()
    if response.status_code == 200:
        return document
    assert document.keys() == {"error_code", "message"}, document
    return response.status_code, document["error_code"], document["message"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1, config={"group.min.session.timeout.ms": "500"}) as cluster:
        yield cluster


class HasBootstrap(Protocol):
    @property
    def bootstrap(self) -> str: ...


def config_for(cluster: HasBootstrap, **more: Any) -> ServerConfig:
    """Of a registry that shares nothing with others."""
    number = next(_numbers)
    settings: dict[str, Any] = {
        "client": client_config(cluster.bootstrap),
        "port": 0,
        "topic": f"_schemas_{number}",
        "group_id": f"registry-{number}",
        **PATIENT,
    }
    return ServerConfig(**settings | more)


@contextmanager
def running(config: ServerConfig, **more: Any) -> Iterator[Registry]:
    registry = Registry(config, **more)
    try:
        yield registry
    finally:
        registry.stop()


@pytest.fixture(scope="session")
def registry(cluster: Cluster) -> Iterator[Registry]:
    """For tests that leave settings of all subjects alone."""
    with running(config_for(cluster)) as registry:
        yield registry


@pytest.fixture
def own_registry(cluster: Cluster) -> Iterator[Registry]:
    with running(config_for(cluster)) as registry:
        yield registry


@pytest.fixture
def subject() -> Callable[[], str]:
    """New subjects, which no other test uses."""
    return lambda: f"subject-{next(_numbers)}"

"""The rights at every endpoint: of the owner of topics and groups, another user, a stranger and an administrator.

Each row has what the console answers. The cluster's ACLs and the registry's rules decide, through the console, as they do
without it.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls
from barnabas.client.admin.configs import ScramUpsert, alter_scram
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.services.console.app import MODULES
from barnabas.services.registry.access import access_of, hash_password
from barnabas.testing import Cluster
from barnabas.wire.auth.mechanisms.scram import ScramMechanism
from tests.scenarios.console.conftest import DEADLINE_S, Console
from tests.scenarios.console.test_console_safety import Visitor, started
from tests.scenarios.registry.conftest import Registry, config_for
from tests.scenarios.registry.conftest import running as running_registry

OWNER, OTHER, ADMIN, STRANGER = "owner", "other", "admin", "stranger"
USERS: Final = (OWNER, OTHER, ADMIN)
#: It stands in the names and records of the owner, and nowhere else.
MARKER: Final = "own-"
TEXT: Final = "personal-data-of-the-owner"
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The status that each user gets. A stranger gets 401 everywhere but at the open endpoints."""

    #: Below `/api`. `{topic}` is one of the owner's with a record; `{group}` one of the owner's that has committed there.
    path: str
    owner: int = 200
    other: int = 403
    admin: int = 200
    stranger: int = 401
    body: Any = None
    #: The answer does not end by itself.
    is_endless: bool = False

    def status(self, user: str) -> int:
        return {OWNER: self.owner, OTHER: self.other, ADMIN: self.admin, STRANGER: self.stranger}[user]


ACL: Final = {
    "resource": "TOPIC", "name": "own-acl", "pattern": "LITERAL", "principal": "User:x", "operation": "READ",
}  # fmt: skip
ROWS: Final[dict[tuple[str, str], Row]] = {
    ("GET", "/about"): Row(path="/about", other=200),
    ("GET", "/acls"): Row(path="/acls", owner=403),
    ("POST", "/acls"): Row(path="/acls", owner=403, body=ACL),
    ("DELETE", "/acls"): Row(path="/acls", owner=403, body=ACL),
    ("GET", "/quotas"): Row(path="/quotas", owner=403),
    ("PATCH", "/quotas"): Row(
        path="/quotas", owner=403, body={"entity": {"user": "x"}, "quotas": {"producer_byte_rate": 1e9}}
    ),
    ("GET", "/users"): Row(path="/users", owner=403),
    ("PUT", "/users/{user}"): Row(path="/users/x", owner=403, body={"password": "pw", "mechanism": "SCRAM-SHA-512"}),
    ("DELETE", "/users/{user}/{mechanism}"): Row(path="/users/y/SCRAM-SHA-512", owner=403),
    ("GET", "/docs/{name}"): Row(path="/docs/console", other=200),
    ("GET", "/events"): Row(path="/events?watch=/api/overview", other=200, is_endless=True),
    ("GET", "/topics/{topic}/export"): Row(path="/topics/{topic}/export?format=jsonl"),
    ("GET", "/clients"): Row(path="/clients", owner=403),
    ("GET", "/clients/{instance}"): Row(path="/clients/AAAAAAAAAAAAAAAAAAAAAA", owner=403, admin=404),
    ("GET", "/groups"): Row(path="/groups", other=200),
    ("GET", "/groups/{group}"): Row(path="/groups/{group}"),
    ("GET", "/groups/{group}/history"): Row(path="/groups/{group}/history", other=200),
    ("GET", "/topics/{topic}/groups"): Row(path="/topics/{topic}/groups"),
    ("GET", "/inside"): Row(path="/inside", owner=403),
    ("GET", "/inside/partitions/{topic}/{partition}"): Row(path="/inside/partitions/{topic}/0", owner=403),
    ("GET", "/inside/partitions/{topic}/{partition}/producers"): Row(
        path="/inside/partitions/{topic}/0/producers", owner=403
    ),
    ("GET", "/inside/waiting"): Row(path="/inside/waiting", owner=403),
    ("GET", "/inside/requests"): Row(path="/inside/requests", owner=403),
    ("GET", "/inside/controller"): Row(path="/inside/controller", owner=403),
    ("GET", "/inside/transactions"): Row(path="/inside/transactions", owner=403),
    ("GET", "/inside/znode"): Row(path="/inside/znode?path=/brokers/topics", owner=403),
    ("GET", "/topics/{topic}/messages"): Row(path="/topics/{topic}/messages"),
    ("GET", "/topics/{topic}/messages/{partition}/{offset}"): Row(path="/topics/{topic}/messages/0/0"),
    ("GET", "/topics/{topic}/messages/{partition}/{offset}/raw"): Row(path="/topics/{topic}/messages/0/0/raw"),
    ("GET", "/topics/{topic}/search"): Row(path="/topics/{topic}/search?text=personal"),
    ("GET", "/topics/{topic}/tail"): Row(path="/topics/{topic}/tail", is_endless=True),
    ("POST", "/topics/{topic}/messages"): Row(path="/topics/{topic}/messages", body={"value": {"text": "x"}}),
    ("GET", "/overview"): Row(path="/overview", other=200),
    ("GET", "/doctor"): Row(path="/doctor", other=200),
    ("GET", "/pipelines"): Row(path="/pipelines", other=200),
    ("POST", "/pipelines/replay"): Row(path="/pipelines/replay", owner=403, admin=409, body={"from": "{topic}"}),
    ("GET", "/groups/{group}/reset"): Row(path="/groups/{group}/reset?topic={topic}&to=earliest"),
    ("POST", "/groups/{group}/reset"): Row(
        path="/groups/{group}/reset", body={"offsets": [{"topic": "{topic}", "partition": 0, "offset": 0}]}
    ),
    ("DELETE", "/groups/{group}"): Row(path="/groups/{group}"),
    ("DELETE", "/groups/{group}/topics/{topic}"): Row(path="/groups/{group}/topics/{topic}"),
    ("GET", "/subjects"): Row(path="/subjects", other=200),
    ("GET", "/subjects/{subject}"): Row(path="/subjects/{subject}"),
    ("GET", "/subjects/{subject}/versions/{version}"): Row(path="/subjects/{subject}/versions/1"),
    ("GET", "/subjects/{subject}/check"): Row(path="/subjects/{subject}/check?schema=%22int%22"),
    ("POST", "/subjects/{subject}/versions"): Row(path="/subjects/{subject}-2/versions", body={"schema": '"string"'}),
    ("DELETE", "/subjects/{subject}/versions/{version}"): Row(path="/subjects/{subject}/versions/1"),
    ("GET", "/session"): Row(path="/session", other=200, stranger=200),
    ("POST", "/session"): Row(
        path="/session", body={"user": "x", "password": "wrong"}, owner=401, other=401, admin=401
    ),
    ("DELETE", "/session"): Row(path="/session", other=200, stranger=200),
    ("GET", "/topics/{topic}/settings"): Row(path="/topics/{topic}/settings"),
    ("PATCH", "/topics/{topic}/settings"): Row(
        path="/topics/{topic}/settings", body={"settings": {"retention.ms": "1"}}
    ),
    ("GET", "/topic-settings"): Row(path="/topic-settings", other=200),
    ("POST", "/topics"): Row(path="/topics", body={"name": "{topic}-new", "partitions": 1}),
    ("POST", "/topics/{topic}/partitions"): Row(path="/topics/{topic}/partitions", body={"partitions": 2}),
    ("DELETE", "/topics/{topic}"): Row(path="/topics/{topic}"),
    ("POST", "/topics/{topic}/delete-records"): Row(
        other=404, path="/topics/{topic}/delete-records", body={"partitions": [{"partition": 0, "offset": 1}]}
    ),
    ("GET", "/topics"): Row(path="/topics", other=200),
    ("GET", "/topics/{topic}"): Row(path="/topics/{topic}"),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Cluster(brokers=1, config=config, inside=True) as cluster:
        asyncio.run(_provision(cluster))
        yield cluster


async def _provision(cluster: Cluster) -> None:
    async with AsyncClient(client_config(cluster.bootstrap)) as admin:
        for user in (*USERS, "y"):
            await alter_scram(admin, user, upserts=[ScramUpsert(ScramMechanism.SHA_512, 4096, user)])
        for kind in (AclResourceType.TOPIC, AclResourceType.GROUP):
            pattern = ResourcePattern(kind, MARKER, PatternType.PREFIXED)
            await create_acls(admin, pattern, [Ace(f"User:{OWNER}", "*", AclOperation.ALL, Permission.ALLOW)])


@pytest.fixture(scope="module")
def registry(secured: Cluster) -> Iterator[Registry]:
    access = access_of(
        {
            "users": {user: hash_password(user) for user in USERS},
            "rules": [{"users": [OWNER], "write": [f"{MARKER}*"]}, {"users": [ADMIN], "write": ["*"]}],
        },
        "access.toml",
    )
    with running_registry(replace(config_for(secured), access=access)) as registry:
        registry.http.auth = (ADMIN, ADMIN)
        yield registry


@pytest.fixture(scope="module")
def console(secured: Cluster, registry: Registry) -> Iterator[Console]:
    with started(secured, schema_registry=registry.url, inside=secured.inside_url(1)) as console:
        yield console


@pytest.fixture(scope="module")
def visitors(console: Console) -> Iterator[dict[str, Visitor]]:
    found = {user: Visitor(console) for user in (*USERS, STRANGER)}
    for user in USERS:
        deadline = time.monotonic() + DEADLINE_S
        while found[user].sign_in(user, user).status_code != 200:  # users reach a broker through ZooKeeper
            assert time.monotonic() < deadline
            console.server.app.state.services.guard._throttle.clear()
            time.sleep(0.1)
    yield found
    for each in found.values():
        each.http.close()


@dataclass(frozen=True)
class Things:
    topic: str
    group: str
    subject: str

    def fill(self, value: Any) -> Any:
        if isinstance(value, str) and "{" in value:
            return value.format(topic=self.topic, group=self.group, subject=self.subject)
        if isinstance(value, dict):
            return {name: self.fill(each) for name, each in value.items()}
        return [self.fill(each) for each in value] if isinstance(value, list) else value


def make(cluster: Cluster, registry: Registry) -> Things:
    """A topic with a record, a group that has committed there, and a subject."""
    number = next(_numbers)
    things = Things(f"{MARKER}topic-{number}", f"{MARKER}group-{number}", f"{MARKER}subject-{number}")

    async def create() -> None:
        async with AsyncClient(client_config(cluster.bootstrap)) as admin:
            await create_topics(admin, [NewTopic(name=things.topic, partitions=1)])

    asyncio.run(create())
    producer = ConfluentProducer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(things.topic, value=TEXT)
    assert producer.flush(DEADLINE_S) == 0
    consumer = ConfluentConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": things.group})
    consumer.commit(offsets=[ConfluentPartition(things.topic, 0, 1)], asynchronous=False)
    consumer.close()
    registry.register(things.subject, f'{{"type":"fixed","name":"F","size":{number}}}')
    return things


@pytest.fixture(scope="module")
def kept(secured: Cluster, registry: Registry) -> Things:
    """For endpoints that change nothing."""
    return make(secured, registry)


@contextmanager
def own_session(console: Console, user: str) -> Iterator[Visitor]:
    """One that may end."""
    visitor = Visitor(console)
    with visitor.http:
        if user != STRANGER:
            assert visitor.sign_in(user, user).status_code == 200
        yield visitor


def ask(visitor: Visitor, method: str, path: str, body: Any, *, is_endless: bool) -> tuple[int, str]:
    headers = {"x-csrf-token": visitor.token or ""}
    request = visitor.http.build_request(method, f"/api{path}", json=body, headers=headers)
    response: httpx.Response = visitor.http.send(request, stream=True)
    try:
        if not is_endless or response.status_code != 200:
            return response.status_code, response.read().decode(errors="replace")
        events = itertools.takewhile(lambda line: not line.startswith("data:"), response.iter_lines())
        return response.status_code, "".join(events)
    finally:
        response.close()


def test_every_endpoint_has_a_row() -> None:
    known = {(each.method, each.path) for module in MODULES for each in module.ENDPOINTS}
    assert known == ROWS.keys()


@pytest.mark.parametrize("user", [OTHER, STRANGER, OWNER, ADMIN])
@pytest.mark.parametrize("endpoint", ROWS, ids=" ".join)
def test_endpoint_answers_each_user_as_its_row_says(
    secured: Cluster,
    registry: Registry,
    console: Console,
    visitors: dict[str, Visitor],
    kept: Things,
    endpoint: tuple[str, str],
    user: str,
) -> None:
    row = ROWS[endpoint]
    things = kept if endpoint[0] == "GET" else make(secured, registry)
    console.server.app.state.services.guard._throttle.clear()
    is_session = endpoint[1] == "/session"
    with own_session(console, user) if is_session else nullcontext(visitors[user]) as visitor:
        path, body = things.fill(row.path), things.fill(row.body)
        status, text = ask(visitor, endpoint[0], path, body, is_endless=row.is_endless)
    assert status == row.status(user), text
    if user in (OTHER, STRANGER):
        assert TEXT not in text
        assert status != 200 or MARKER not in text

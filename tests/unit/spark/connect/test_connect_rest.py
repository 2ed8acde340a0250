"""The REST interface and the states behind it, over HTTP, with an engine that stands in for Spark."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from barnabas.base.errors import ConfigError
from barnabas.services.registry.access import Access, access_of, hash_token
from barnabas.spark.connect import files
from barnabas.spark.connect.connector import Connector, Worker
from barnabas.spark.connect.herder import Herder, Running
from barnabas.spark.connect.rest import Api, RestServer

CONFIG: Final = {
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "topics": "orders",
    "connection.url": "jdbc:postgresql://localhost/shop",
}


@dataclass
class FakeQuery:
    """A query that goes on until a test ends it."""

    active: bool = True
    why: str = ""

    def is_active(self) -> bool:
        return self.active

    def failure(self) -> str:
        return self.why

    def stop(self) -> None:
        self.active = False


@dataclass
class FakeEngine:
    state: Path
    refuses: str = ""
    queries: dict[str, FakeQuery] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)

    def start(self, connector: Connector) -> dict[str, Running]:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.queries[connector.name] = query = FakeQuery()
        return {"sink": query}

    def checkpoints(self, name: str) -> dict[str, Path]:
        return {"sink": self.state / name / "checkpoint"}

    def reset(self, name: str) -> None:
        self.resets.append(name)


@dataclass
class Rest:
    client: httpx.AsyncClient
    engine: FakeEngine
    herder: Herder

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        response = await self.client.request(method, path, json=body, **more)
        return response.status_code, response.json() if response.content else None

    async def state(self, name: str = "orders") -> str:
        _, document = await self.ask("GET", f"/connectors/{name}/status")
        return str(document["connector"]["state"])


@asynccontextmanager
async def served(
    folder: Path, described: list[files.Described] | None = None, access: Access | None = None
) -> AsyncIterator[Rest]:
    server = RestServer("127.0.0.1", 0, *([] if access is None else [access]))
    engine, stopping, ready = FakeEngine(folder), asyncio.Event(), asyncio.Event()
    herder = Herder(engine, Worker("localhost:9092"), folder, described or [])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(herder.run(stopping, ready.set))
        tasks.create_task(server.run(herder, stopping, "cluster-1"))
        await ready.wait()
        async with httpx.AsyncClient(base_url=server.url) as client:
            yield Rest(client, engine, herder)
        stopping.set()
    server.close()


async def test_connector_is_created_shown_changed_and_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        assert await rest.ask("GET", "/connectors") == (200, [])
        status, made = await rest.ask("POST", "/connectors", {"name": "orders", "config": CONFIG})
        assert (status, made["name"], made["type"]) == (201, "orders", "sink")
        assert made["config"] == CONFIG | {"name": "orders"}
        assert made["tasks"] == [{"connector": "orders", "task": 0}]
        assert await rest.ask("POST", "/connectors", {"name": "orders", "config": CONFIG}) == (
            409,
            {"error_code": 409, "message": "Connector orders already exists"},
        )
        assert (await rest.ask("PUT", "/connectors/orders/config", CONFIG | {"tasks.max": 2}))[0] == 200
        assert (await rest.ask("GET", "/connectors/orders/config"))[1]["tasks.max"] == "2"
        assert (await rest.ask("GET", "/connectors/orders"))[1]["config"]["tasks.max"] == "2"
        _, expanded = await rest.ask("GET", "/connectors?expand=status&expand=info")
        assert expanded["orders"]["status"]["connector"]["state"] == "RUNNING"
        assert expanded["orders"]["info"]["type"] == "sink"
        assert (await rest.ask("GET", "/connectors/orders/tasks"))[1][0]["id"] == {"connector": "orders", "task": 0}
        assert await rest.ask("DELETE", "/connectors/orders") == (204, None)
        assert (await rest.ask("GET", "/connectors/orders/status"))[0] == 404
        assert not rest.engine.queries["orders"].active


async def test_config_that_cannot_run_changes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        status, document = await rest.ask("PUT", "/connectors/orders/config", CONFIG | {"auto.craete": "true"})
        assert status == 400 and "did you mean auto.create?" in document["message"]
        assert await rest.ask("GET", "/connectors") == (200, [])
        for body in ({"name": "a/b", "config": CONFIG}, {"name": "x"}, {"name": "x", "config": {"a": {}}}):
            assert (await rest.ask("POST", "/connectors", body))[0] == 400
        assert (await rest.ask("PUT", "/connectors/orders/config", CONFIG))[0] == 201
        source = {"connector.class": "JdbcSource"}
        assert "keeps its class" in (await rest.ask("PUT", "/connectors/orders/config", source))[1]["message"]


async def test_paused_connector_stays_paused_in_the_next_process(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        await rest.ask("PUT", "/connectors/orders/config", CONFIG)
        first = rest.engine.queries["orders"]
        assert (await rest.ask("PUT", "/connectors/orders/pause"))[0] == 202
        assert await rest.state() == "PAUSED" and not first.active
        assert (await rest.ask("POST", "/connectors/orders/restart"))[0] == 409
    async with served(tmp_path) as rest:
        assert await rest.state() == "PAUSED" and rest.engine.queries == {}
        assert (await rest.ask("PUT", "/connectors/orders/resume"))[0] == 202
        assert await rest.state() == "RUNNING" and rest.engine.queries["orders"].active


async def test_connector_of_a_file_is_changed_in_the_file(tmp_path: Path) -> None:
    described = files.Described("orders", CONFIG | {"name": "orders"}, "STOPPED", tmp_path / "orders.json")
    async with served(tmp_path, [described]) as rest:
        assert await rest.state() == "STOPPED"
        for method, path in (("PUT", "/connectors/orders/config"), ("DELETE", "/connectors/orders")):
            status, document = await rest.ask(method, path, CONFIG if method == "PUT" else None)
            assert status == 409 and "orders.json" in document["message"]


async def test_failure_is_shown_with_its_cause_and_a_restart_mends_it(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        rest.engine.refuses = "the database is away"
        await rest.ask("PUT", "/connectors/orders/config", CONFIG)
        _, document = await rest.ask("GET", "/connectors/orders/status")
        assert document["connector"]["state"] == "FAILED" and document["connector"]["trace"] == "the database is away"
        rest.engine.refuses = ""
        assert (await rest.ask("POST", "/connectors/orders/restart?onlyFailed=true&includeTasks=true"))[0] == 202
        assert await rest.state() == "RUNNING"
        query = rest.engine.queries["orders"]
        query.why, query.active = "column id is missing", False
        async with asyncio.timeout(30):
            while (document := (await rest.ask("GET", "/connectors/orders/status"))[1])["tasks"][0][
                "state"
            ] == "RUNNING":
                await asyncio.sleep(0.05)
        assert document["tasks"][0]["trace"] == "column id is missing"
        assert (await rest.ask("POST", "/connectors/orders/restart"))[0] == 204
        assert rest.engine.queries["orders"] is not query


def checkpoint(folder: Path, offsets: Mapping[str, Mapping[str, int]]) -> Path:
    """Make the checkpoint of a query that has committed one batch."""
    place = folder / "orders" / "checkpoint"
    for name, text in {
        "metadata": '{"id":"11111111-1111-1111-1111-111111111111"}',
        "offsets/0": "v1\n{}\n" + json.dumps(offsets),
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


async def test_offsets_are_shown_set_and_reset_while_it_is_stopped(tmp_path: Path) -> None:
    checkpoint(tmp_path, {"orders": {"0": 5, "1": 7}})
    partition = {"kafka_topic": "orders", "kafka_partition": 1}
    change = {"offsets": [{"partition": partition, "offset": {"kafka_offset": 3}}]}
    async with served(tmp_path) as rest:
        await rest.ask("PUT", "/connectors/orders/config", CONFIG)
        _, document = await rest.ask("GET", "/connectors/orders/offsets")
        assert [each["offset"]["kafka_offset"] for each in document["offsets"]] == [5, 7]
        for method, body in (("PATCH", change), ("DELETE", None)):
            status, document = await rest.ask(method, "/connectors/orders/offsets", body)
            assert status == 400 and "only while it is STOPPED" in document["message"]
        assert (await rest.ask("PUT", "/connectors/orders/stop"))[0] == 204
        assert (await rest.ask("PATCH", "/connectors/orders/offsets", change))[0] == 200
        _, document = await rest.ask("GET", "/connectors/orders/offsets")
        assert document["offsets"][1] == {"partition": partition, "offset": {"kafka_offset": 3}}
        for wrong in (
            {"offsets": []},
            {"offsets": [{"partition": partition, "offset": {"kafka_offset": -1}}]},
            {"offsets": [{"partition": partition, "offset": None}]},
            {
                "offsets": [
                    {"partition": {"kafka_topic": "others", "kafka_partition": 0}, "offset": {"kafka_offset": 1}}
                ]
            },
        ):
            assert (await rest.ask("PATCH", "/connectors/orders/offsets", wrong))[0] == 400
        assert (await rest.ask("DELETE", "/connectors/orders/offsets"))[0] == 200
        assert rest.engine.resets == ["orders"]


async def test_plugins_are_listed_and_validate_a_config(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        _, plugins = await rest.ask("GET", "/connector-plugins")
        assert {"class": "io.debezium.connector.postgresql.PostgresConnector", "type": "source"}.items() <= plugins[
            -1
        ].items()
        path = "/connector-plugins/JdbcSinkConnector/config/validate"
        secret = {"name": "x", "connection.password": "s3cret"}
        status, found = await rest.ask("PUT", path, CONFIG | secret | {"insert.mode": "update"})
        assert (status, found["error_count"]) == (200, 1)
        values = {each["value"]["name"]: each["value"] for each in found["configs"]}
        assert "use insert or upsert" in values["insert.mode"]["errors"][0]
        assert values["connection.password"]["value"] == "[hidden]"
        assert (await rest.ask("PUT", path, CONFIG | {"name": "x"}))[1]["error_count"] == 0
        (tmp_path / "secret.properties").write_text("password=s3cret")
        stolen = {"name": "x", "auto.create": f"${{file:{tmp_path}/secret.properties:password}}"}
        status, found = await rest.ask("PUT", path, CONFIG | stolen)
        assert found["error_count"] == 1 and "s3cret" not in json.dumps(found)
        assert (await rest.ask("PUT", "/connector-plugins/x.Y/config/validate", CONFIG))[0] == 404
        assert (await rest.ask("GET", "/"))[1]["kafka_cluster_id"] == "cluster-1"


#: The status of each request for the user of this connector, for one who may read it, for another one, and for a stranger.
RIGHTS: Final[dict[tuple[str, str], tuple[int, int, int, int]]] = {
    ("GET", ""): (200, 200, 200, 401),
    ("GET", "connectors"): (200, 200, 200, 401),
    ("POST", "connectors"): (409, 403, 403, 401),
    ("GET", "connectors/{name}"): (200, 200, 403, 401),
    ("GET", "connectors/{name}/config"): (200, 200, 403, 401),
    ("PUT", "connectors/{name}/config"): (200, 403, 403, 401),
    ("GET", "connectors/{name}/status"): (200, 200, 403, 401),
    ("GET", "connectors/{name}/tasks"): (200, 200, 403, 401),
    ("GET", "connectors/{name}/offsets"): (200, 200, 403, 401),
    ("PUT", "connectors/{name}/pause"): (202, 403, 403, 401),
    ("PUT", "connectors/{name}/resume"): (202, 403, 403, 401),
    ("POST", "connectors/{name}/restart"): (204, 403, 403, 401),
    ("PUT", "connectors/{name}/stop"): (204, 403, 403, 401),
    ("PATCH", "connectors/{name}/offsets"): (400, 403, 403, 401),
    ("DELETE", "connectors/{name}/offsets"): (200, 403, 403, 401),
    ("GET", "connector-plugins"): (200, 200, 200, 401),
    ("PUT", "connector-plugins/{class}/config/validate"): (200, 403, 403, 401),
    ("DELETE", "connectors/{name}"): (204, 403, 403, 401),
}


async def test_every_route_has_its_rights(tmp_path: Path) -> None:
    users = ("owner", "reader", "other")
    access = access_of(
        {
            "tokens": {name: hash_token(name) for name in users},
            "rules": [
                {"users": ["owner"], "read": ["own-*"], "write": ["own-*"]},
                {"users": ["reader"], "read": ["own-*"]},
                {"users": ["other"], "read": ["their-*"], "write": ["their-*"]},
            ],
        },
        "access",
    )
    assert {(each.method, each.pattern) for each in Api(None, access, "", "").routes()} == RIGHTS.keys()  # type: ignore[arg-type]
    async with served(tmp_path, access=access) as rest:
        own = {"authorization": "Bearer owner"}
        await rest.ask("PUT", "/connectors/own-1/config", CONFIG, headers=own)
        for number in (3, 2, 1, 0):  # strangers first: the owner changes what the others must not
            headers = {"authorization": f"Bearer {users[number]}"} if number < 3 else {}
            for (method, pattern), statuses in RIGHTS.items():
                path = "/" + pattern.replace("{name}", "own-1").replace("{class}", "JdbcSink")
                is_new = method == "POST" and pattern == "connectors"
                body = {"name": "own-1", "config": CONFIG} if is_new else CONFIG | {"name": "own-1"}
                given = body if method in ("POST", "PUT", "PATCH") else None
                status, _ = await rest.ask(method, path, given, headers=headers)
                assert (method, pattern, number, status) == (method, pattern, number, statuses[number])
        _, listed = await rest.ask("GET", "/connectors", headers={"authorization": "Bearer other"})
        assert listed == []


async def test_pages_of_other_sites_and_other_names_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        assert (await rest.ask("GET", "/connectors", headers={"host": "evil.example"}))[0] == 421
        assert (await rest.ask("GET", "/connectors", headers={"origin": "http://evil.example"}))[0] == 403
        text = await rest.client.put("/connectors/x/config", content=b"{}", headers={"content-type": "text/plain"})
        assert text.status_code == 415


def test_an_address_that_others_reach_needs_sign_in() -> None:
    with pytest.raises(ConfigError, match="name the users and their rights with --access"):
        RestServer("0.0.0.0", 0)


async def test_once_ends_when_all_queries_have_ended_and_says_whether_one_failed(tmp_path: Path) -> None:
    for why in ("", "the table is missing"):
        engine, ready = FakeEngine(tmp_path), asyncio.Event()
        described = files.Described("orders", CONFIG | {"name": "orders"}, file=tmp_path / "orders.json")
        herder = Herder(engine, Worker("localhost:9092"), tmp_path, [described], ends=True)
        running = asyncio.create_task(herder.run(asyncio.Event(), ready.set))
        await ready.wait()
        assert not running.done()
        query = engine.queries["orders"]
        query.why, query.active = why, False
        async with asyncio.timeout(30):
            await running
        assert herder.connectors["orders"].life.has_failed == bool(why)

"""The schema ids that a broker accepts, and its cache of them. The registry is an HTTP server of a few lines."""

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import RECORD_NAME, TOPIC_NAME, TOPIC_RECORD_NAME, LogConfig
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.schema_checks import ids as schema_ids
from barnabas.broker.features.schema_checks.checks import SchemaChecks
from barnabas.broker.features.schema_checks.ids import (
    KNOWN_S,
    LOOK_AGAIN_S,
    UNKNOWN_S,
    SchemaIds,
    Subjects,
    Unreachable,
)
from barnabas.broker.features.schema_checks.names import message_names, record_names
from barnabas.wire.compression import Codec
from barnabas.wire.records import BatchBuilder
from tests.manual_time import ManualClock

DEADLINE_S = 60
VALUES = Subjects("orders", False, TOPIC_NAME)
NOT_FOUND = (404, {"error_code": 40403, "message": "Schema not found"})


class FakeRegistry(ThreadingHTTPServer):
    """Answers what `answers` has by path: a document, or a status and a document; all else is not found."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.headers_seen: list[dict[str, str]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.headers_seen.append(dict(self.headers))
        assert self.server.hold.wait(DEADLINE_S)
        answer = self.server.answers.get(self.path, NOT_FOUND)
        status, document = answer if isinstance(answer, tuple) else (200, answer)
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


class World:
    """A broker's settings, clock and tasks."""

    def __init__(self, url: str, **settings: str) -> None:
        self.clock = ManualClock()
        self.tasks: set[asyncio.Task[None]] = set()
        self.config = BrokerConfig.parse(
            {
                "zookeeper.connect": "localhost:2181",
                "barnabas.schema.registry.url": url,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    def spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ids(self) -> SchemaIds:
        return SchemaIds(lambda: self.config, self.clock, self.spawn)

    def checks(self, **settings: Any) -> SchemaChecks:
        async def on_thread(work: Callable[[], Any]) -> Any:
            return await asyncio.to_thread(work)

        checks = SchemaChecks(lambda: self.config, self.clock, on_thread=on_thread, spawn=self.spawn)
        checks.topic_settings_changed("orders", LogConfig(barnabas_value_schema_validation=True, **settings))
        return checks

    async def settled(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)


def prefix(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


def batch(*values: bytes | None, codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec=codec)
    for value in values:
        builder.append(None, value, timestamp=1)
    return bytearray(builder.build())


ORDERS = TopicPartition("orders", 0)


async def test_registered_id_is_asked_for_once_and_kept(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    world = World(registry.url)
    ids = world.ids()
    known = ids.known(VALUES)
    found = await asyncio.gather(*(ids.is_registered(VALUES, prefix(7)) for _ in range(20)))
    assert found == [True] * 20
    assert prefix(7) in known
    assert await ids.is_registered(VALUES, prefix(7))
    assert registry.asked == ["/schemas/ids/7/subjects"]


async def test_unknown_id_is_kept_for_a_moment_only(registry: FakeRegistry) -> None:
    world = World(registry.url)
    ids = world.ids()
    ids.known(VALUES)
    for _ in range(3):
        assert not await ids.is_registered(VALUES, prefix(7))
    assert registry.asked == ["/schemas/ids/7/subjects"]
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]
    assert not await ids.is_registered(VALUES, prefix(7))
    world.clock.advance_ms(int(UNKNOWN_S * 1000))
    assert await ids.is_registered(VALUES, prefix(7))


async def test_id_of_another_subject_is_not_registered(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-key", "payments-value"]

    assert not await World(registry.url).ids().is_registered(VALUES, prefix(7))


async def test_known_id_is_looked_up_again_after_an_hour_and_goes_when_it_is_deleted(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    world = World(registry.url)
    ids = world.ids()
    known = ids.known(VALUES)
    assert await ids.is_registered(VALUES, prefix(7))
    registry.answers["/schemas/ids/7/subjects"] = (500, b"")
    for _ in range(2):
        world.clock.advance_ms(int(KNOWN_S * 1000))
        ids.look_again()
        await world.settled()
        assert prefix(7) in known, "the registry is away: it still counts"
    assert len(registry.asked) == 3
    registry.answers["/schemas/ids/7/subjects"] = []
    world.clock.advance_ms(int(LOOK_AGAIN_S * 1000))
    ids.look_again()
    await world.settled()
    assert prefix(7) not in known


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"error_code": 40101}),
        (404, b"no such page"),
        (500, {"error_code": 50001}),
        b"{",
        b"[" * 100_000,
        {"not": "a list"},
        [{"subject": "orders-value"}],
    ],
    ids=["sign-in", "page", "trouble", "no json", "deep", "no list", "no names"],
)
async def test_answers_without_a_statement_about_a_schema_do_not_refuse_it(registry: FakeRegistry, answer: Any) -> None:
    registry.answers["/schemas/ids/7/subjects"] = answer

    with pytest.raises(Unreachable):
        await World(registry.url).ids().is_registered(VALUES, prefix(7))


async def test_next_address_is_asked_where_one_does_not_answer(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    assert await World(f"http://127.0.0.1:1,{registry.url}/").ids().is_registered(VALUES, prefix(7))


async def test_broker_signs_in(registry: FakeRegistry) -> None:
    by_password = {"barnabas.schema.registry.basic.auth.user.info": "ann:secret"}
    await World(registry.url, **by_password).ids().is_registered(VALUES, prefix(7))
    by_token = {"barnabas.schema.registry.bearer.auth.token": "token"}
    await World(registry.url, **by_token).ids().is_registered(VALUES, prefix(7))
    sent = [seen["Authorization"] for seen in registry.headers_seen if "Authorization" in seen]
    assert set(sent) == {f"Basic {base64.b64encode(b'ann:secret').decode()}", "Bearer token"}


async def test_answers_are_bounded(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_ids, "KNOWN_MAX", 5)
    monkeypatch.setattr(schema_ids, "UNKNOWN_MAX", 5)
    for number in range(100):
        registry.answers[f"/schemas/ids/{number}/subjects"] = ["orders-value"] if number % 2 else []
    ids = World(registry.url).ids()
    known = ids.known(VALUES)
    for number in range(40):
        assert await ids.is_registered(VALUES, prefix(number)) == bool(number % 2)
        assert len(known) <= 5
        assert len(ids._unknown) <= 5
    assert prefix(39) in known


# -- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema_type", "text", "expected"),
    [
        ("AVRO", '{"type": "record", "name": "User", "namespace": "shop", "fields": []}', {"shop.User"}),
        ("AVRO", '{"type": "record", "name": "a.b.User", "namespace": "shop", "fields": []}', {"a.b.User"}),
        ("AVRO", '{"type": "enum", "name": "E", "symbols": ["A"]}', {"E"}),
        ("AVRO", '"string"', {"string"}),
        ("AVRO", '{"type": "int", "logicalType": "date"}', {"int"}),
        ("AVRO", '["null", "string"]', set()),
        ("JSON", '{"title": "Page", "type": "object"}', {"Page"}),
        ("JSON", '{"type": "object"}', set()),
        ("JSON", "true", set()),
        ("AVRO", "{", set()),
    ],
)
def test_names_of_avro_and_json_schemas(schema_type: str, text: str, expected: set[str]) -> None:
    assert record_names(schema_type, text) == expected


def test_names_of_protobuf_messages() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="x.proto", package="shop.v1", dependency=["y.proto"], syntax="proto3"
    )
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)
    outer = file.message_type.add(name="Order")
    outer.field.add(name="n", number=1, type=5, label=1)
    outer.nested_type.add(name="Line").nested_type.add(name="Tax")
    file.message_type.add(name="Other")
    assert message_names(file.SerializeToString()) == {
        "shop.v1.Order",
        "shop.v1.Order.Line",
        "shop.v1.Order.Line.Tax",
        "shop.v1.Other",
    }
    file.ClearField("package")
    assert "Other" in message_names(file.SerializeToString())


@pytest.mark.parametrize(
    ("strategy", "registered", "expected"),
    [
        (RECORD_NAME, "shop.Order", True),
        (RECORD_NAME, "orders-shop.Order", False),
        (TOPIC_RECORD_NAME, "orders-shop.Order", True),
        (TOPIC_RECORD_NAME, "orders-value", False),
    ],
)
async def test_protobuf_id_counts_under_the_name_of_any_of_its_messages(
    registry: FakeRegistry, strategy: str, registered: str, expected: bool
) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First")
    file.message_type.add(name="Order")
    registry.answers["/schemas/ids/7/subjects"] = [registered]
    registry.answers["/schemas/ids/7"] = {"schema": "…", "schemaType": "PROTOBUF"}
    serialized = base64.b64encode(file.SerializeToString()).decode()
    registry.answers["/schemas/ids/7?format=serialized"] = {"schema": serialized, "schemaType": "PROTOBUF"}

    assert await World(registry.url).ids().is_registered(Subjects("orders", False, strategy), prefix(7)) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"/schemas/ids/7": {"schema": '{"type": "record", "name": "\\ud800", "fields": []}'}}, False),
        ({"/schemas/ids/7": []}, False),
        ({"/schemas/ids/7": {"schemaType": 5, "schema": None}}, False),
        ({"/schemas/ids/7": {"schemaType": "PROTOBUF"}, "/schemas/ids/7?format=serialized": []}, False),
        ({"/schemas/ids/7": {"schemaType": "PROTOBUF"}, "/schemas/ids/7?format=serialized": {"schema": "é"}}, None),
        ({"/schemas/ids/7": {"schemaType": "PROTOBUF"}, "/schemas/ids/7?format=serialized": {"schema": "////"}}, None),
    ],
)
async def test_odd_schemas_of_a_registry_end_no_broker(
    registry: FakeRegistry, answers: dict[str, Any], expected: bool | None
) -> None:
    """An error of another kind would end the broker, which is the parent of each lookup."""
    registry.answers = {"/schemas/ids/7/subjects": ["other"], **answers}

    question = World(registry.url).ids().is_registered(Subjects("orders", False, RECORD_NAME), prefix(7))
    if expected is None:
        with pytest.raises(Unreachable):
            await question
    else:
        assert await question is expected


async def test_registry_that_does_not_come_to_an_end_is_not_waited_for(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_ids, "_ANSWER_S", 0.05)
    registry.hold.clear()

    with pytest.raises(Unreachable, match="no answer"):
        await World(registry.url).ids().is_registered(VALUES, prefix(7))
    registry.hold.set()


# -- batches ----------------------------------------------------------------------------------------------------------------


async def test_batch_of_known_ids_is_clear_without_a_question(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    checks = World(registry.url).checks()
    records = batch(prefix(7) + b"x", None, prefix(7))
    assert not checks.is_clear(ORDERS, records)
    assert await checks.refusal(ORDERS, records) is None
    assert checks.is_clear(ORDERS, records)
    assert checks.is_clear(TopicPartition("others", 0), batch(b"anything"))
    assert len(registry.asked) == 1


async def test_many_unknown_ids_of_one_batch_cost_few_questions(registry: FakeRegistry) -> None:
    checks = World(registry.url).checks()
    refusal = await checks.refusal(ORDERS, batch(*(prefix(number) for number in range(1_000))))
    assert refusal is not None and refusal.code is ErrorCode.INVALID_RECORD
    assert len({path for path in registry.asked if path.startswith("/schemas")}) == 8


async def test_large_batch_is_not_read_on_the_loop(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    checks = World(registry.url).checks()
    assert await checks.refusal(ORDERS, batch(prefix(7))) is None
    many = batch(*[prefix(7)] * 3_000)
    bomb = batch(prefix(7) + bytes(20_000_000), codec=Codec.ZSTD)
    for records in (many, bomb):
        assert not checks.is_clear(ORDERS, records)
        assert await checks.refusal(ORDERS, records) is None


async def test_change_of_settings_forgets_what_was_known(registry: FakeRegistry) -> None:
    registry.answers["/schemas/ids/7/subjects"] = ["orders-value"]

    world = World(registry.url)
    checks = world.checks()
    assert await checks.refusal(ORDERS, batch(prefix(7))) is None
    checks.topic_settings_changed("orders", LogConfig(barnabas_value_schema_validation=True, retention_ms=1))
    assert checks.is_clear(ORDERS, batch(prefix(7))), "another setting changed"
    other = World("http://127.0.0.1:1").config
    checks.settings_changed(world.config, other)
    assert not checks.is_clear(ORDERS, batch(prefix(7)))
    checks.topic_settings_changed("orders", LogConfig())
    assert not checks.topics
    assert checks.is_clear(ORDERS, batch(b"plain"))

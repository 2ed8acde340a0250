"""What the console makes of values that cannot, or must not, be decoded: their bytes, and the reason."""

import asyncio
import json
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from barnabas.client.registry import RegistryUnreachable
from barnabas.services.console.decoding import Undecodable, show, show_record
from barnabas.services.console.export import _json_line
from barnabas.services.console.registered import Registered
from barnabas.services.registry import wire
from barnabas.wire.records import Record

LIST = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
PROTO = 'syntax = "proto3"; message Tree { repeated Tree t = 1; double d = 2; }'


class FakeClient:
    """A registry that answers with whatever a stranger may have put there."""

    def __init__(self, schemas: dict[int, Any]) -> None:
        self.schemas = schemas

    def ask(self, method: str, *path: object, **_: object) -> Any:
        return self.schemas[int(str(path[-1]))]

    def close(self) -> None: ...


def registered(answers: dict[int, Any], *values: bytes) -> Registered:
    made = Registered(FakeClient(answers))  # type: ignore[arg-type]
    _run(made.prepare(_record(value) for value in values))
    return made


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def _record(value: bytes) -> Record:
    return Record(offset=0, timestamp=0, key=None, value=value, headers=())


class SilentClient(FakeClient):
    """A registry that takes requests and does not answer."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0
        self.goes_on = threading.Event()

    def ask(self, method: str, *path: object, **_: object) -> Any:
        self.asked += 1
        self.goes_on.wait(30)
        raise RegistryUnreachable("gave up")


def test_registry_that_does_not_answer_delays_pages_once_and_holds_up_no_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barnabas.services.console.registered.PREPARE_S", 0.05)
    client = SilentClient()
    made = Registered(client)  # type: ignore[arg-type]
    records = [_record(wire.frame(number, b"\x02")) for number in range(1, 100)]

    async def scenario() -> None:
        await asyncio.gather(*(made.prepare(records) for _ in range(50)))
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "done") == "done"
        asked = client.asked
        await made.prepare([*records, _record(wire.frame(100, b"\x02"))])
        assert client.asked == asked < 10
        await made.close()

    try:
        _run(scenario())
    finally:
        client.goes_on.set()
    for number in (1, 99, 100):
        shown = show(wire.frame(number, b"\x02"), "auto", made.decode)
        assert shown.format == "hex" and f"schema {number}: the registry" in shown.note


def test_registry_that_cannot_be_reached_is_asked_once_for_all_schemas_of_a_page() -> None:
    client = SilentClient()
    client.goes_on.set()
    made = Registered(client)  # type: ignore[arg-type]
    _run(made.prepare(_record(wire.frame(number, b"\x02")) for number in range(1, 100)))
    assert client.asked == 1
    assert "gave up" in show(wire.frame(99, b"\x02"), "auto", made.decode).note


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"schema": '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Gone"}]}'}, "Gone"),
        ({"schema": '{"type": "record"}'}, "KeyError|name"),
        ({"schema": "{"}, "not JSON"),
        ({"schema": "[" * 100_000}, "more than 200 deep"),
        ({"schema": '{"type": "array", "items": ' * 150 + '"int"' + "}" * 150}, ""),
        ({"schema": 'syntax = "proto3"; message A { B b = 1; }', "schemaType": "PROTOBUF"}, ""),
        ({"schema": "!", "schemaType": "PROTOBUF"}, ""),
        ({"schemaType": "AVRO"}, "schema"),
        ([], ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("wanted", ["auto", "registry"])
def test_a_schema_that_cannot_be_used_hides_no_other_record(answer: Any, reason: str, wanted: str) -> None:
    good = wire.frame(2, b"\x02")
    bad = wire.frame(1, b"\x02\x01\x00")
    decoder = registered({1: answer, 2: {"schema": '"int"'}}, bad, good)
    shown = show(bad, wanted, decoder.decode)
    assert shown.format == "hex" and "schema 1" in shown.note
    assert any(each in shown.note for each in reason.split("|"))
    assert len(shown.note) < 700
    assert show(good, wanted, decoder.decode).text == "1"


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        (LIST, b"\x02" * 20_000, "nested more than 200 deep"),
        ({"type": "array", "items": "null"}, b"\x80\xd0\xac\xf3\x1d\x00", "stand for more than"),
        ({"type": "array", "items": "int"}, b"\xc0\xc4\x3d" + b"\x00" * 500_001, "more than 250,000 values"),
    ],
)
def test_a_hostile_avro_value_is_shown_as_bytes(schema: Any, payload: bytes, reason: str) -> None:
    data = wire.frame(1, payload)
    shown = show(data, "registry", registered({1: {"schema": json.dumps(schema)}}, data).decode)
    assert shown.format == "hex" and reason in shown.note and "schema 1" in shown.note


def test_a_hostile_protobuf_value_is_shown_as_bytes() -> None:
    deep = b""
    for _ in range(120):
        size = len(deep)
        deep = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + deep
    answers = {1: {"schema": PROTO, "schemaType": "PROTOBUF"}}
    for payload, reason in ((b"\x00" + deep, "DecodeError"), (b"\x02\x09", "of message"), (b"\x02\x01", "of message")):
        data = wire.frame(1, payload)
        shown = show(data, "registry", registered(answers, data).decode)
        assert shown.format == "hex" and reason in shown.note


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 250 + "]" * 250, '{"a":NaN}', "[1e999]", "[" + "9" * 5_000 + "]"]
)
def test_text_that_only_looks_like_json_is_shown_as_text(text: str) -> None:
    assert show(text.encode(), "auto", None).format == "text"
    shown = show(text.encode(), "json", None)
    assert shown.format == "hex" and "not JSON" in shown.note


def test_json_behind_a_schema_has_the_same_bounds() -> None:
    data = wire.frame(1, b"[" * 250 + b"]" * 250)
    decoder = registered({1: {"schema": "{}", "schemaType": "JSON"}}, data)
    with pytest.raises(Undecodable, match="more than 200 deep"):
        decoder.decode(data)


@pytest.mark.parametrize(("bits", "word"), [("7ff8000000000000", "NaN"), ("fff0000000000000", "-Infinity")])
def test_exported_lines_are_json_where_a_value_has_no_number(bits: str, word: str) -> None:
    data = wire.frame(1, bytes.fromhex(bits)[::-1])
    decoder = registered({1: {"schema": '"double"'}}, data)
    shown = show_record("t", 0, _record(data), key="auto", value="registry", by_registry=decoder.decode)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads(_json_line("t", shown), parse_constant=refuse)
    assert line["value"] == word and line["valueFormat"] == "avro"
    assert json.loads(shown.value.text, parse_constant=refuse) == word

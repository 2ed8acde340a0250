"""Messages that other clients wrote: pages, formats, searches, the tail, one produced here and read there."""

import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import Cluster, Record
from tests.scenarios.console.conftest import DEADLINE_S, Console, answer_of, events_of


def produce(cluster: Cluster, topic: str, records: list[dict[str, Any]], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(DEADLINE_S) == 0


def offsets(answer: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in answer["records"]]


def test_pages_go_back_from_the_newest_record_to_the_first(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(cluster, name, [{"value": f"v{n}"} for n in range(25)], **{"compression.type": "zstd"})
    path = f"/api/topics/{name}/messages"
    first = console.get(path, count=10)
    assert offsets(first) == list(range(24, 14, -1))
    second = console.get(path, count=10, next=first["next"])
    assert offsets(second) == list(range(14, 4, -1))
    last = console.get(path, count=10, next=second["next"])
    assert offsets(last) == [4, 3, 2, 1, 0] and last["next"] is None


def test_pages_go_forward_from_the_oldest_an_offset_and_a_time(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(cluster, name, [{"value": f"v{n}", "timestamp": 1_700_000_000_000 + n * 1000} for n in range(20)])
    path = f"/api/topics/{name}/messages"
    first = console.get(path, **{"from": "oldest", "count": 15})
    assert offsets(first) == list(range(15))
    assert offsets(console.get(path, **{"from": "oldest", "next": first["next"]})) == list(range(15, 20))
    assert offsets(console.get(path, **{"from": "offset", "offset": 17})) == [17, 18, 19]
    assert offsets(console.get(path, **{"from": "time", "time": 1_700_000_012_500})) == list(range(13, 20))
    assert offsets(console.get(path, **{"from": "time", "time": 1_800_000_000_000})) == []


def test_partitions_are_merged_by_time_and_every_record_is_on_one_page(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    records = [{"value": f"v{n}", "partition": n * 7 % 3, "timestamp": 1_700_000_000_000 + n} for n in range(60)]
    produce(cluster, name, records)
    for start, wanted in (("newest", list(range(59, -1, -1))), ("oldest", list(range(60)))):
        seen: list[int] = []
        query: dict[str, Any] = {"from": start, "count": 7}
        while True:
            answer = console.get(f"/api/topics/{name}/messages", **query)
            seen += [int(record["value"]["text"][1:]) for record in answer["records"]]
            if not answer["next"]:
                break
            query["next"] = answer["next"]
        assert seen == wanted
    one = console.get(f"/api/topics/{name}/messages", partition=1, count=100)
    assert {record["partition"] for record in one["records"]} == {1} and len(one["records"]) == 20
    assert console.get(f"/api/topics/{name}/messages", partition=7)[:2] == (404, "NOT_FOUND")


def test_empty_topic_is_an_empty_page(console: Console, topic: Callable[..., str]) -> None:
    name = topic(partitions=4)
    for start in ("newest", "oldest", "offset", "time"):
        answer = console.get(f"/api/topics/{name}/messages", **{"from": start})
        assert answer["records"] == [] and answer["next"] is None and len(answer["partitions"]) == 4


def test_newest_records_are_found_behind_deleted_ones_and_markers(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """A committed transaction ends with a marker, an aborted one has records that committed readers do not see."""
    name = topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"t-{uuid4()}"})
    producer.init_transactions(DEADLINE_S)
    for number in range(30):
        producer.begin_transaction()
        producer.produce(name, value=f"v{number}")
        assert producer.flush(DEADLINE_S) == 0  # an abort drops what was not sent yet
        if number % 3:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    committed = console.get(f"/api/topics/{name}/messages", count=10, isolation="read_committed")
    assert [r["value"]["text"] for r in committed["records"]] == [f"v{n}" for n in range(27, -1, -3)]
    everything = console.get(f"/api/topics/{name}/messages", count=30)
    assert len(everything["records"]) == 30


def test_large_records_do_not_hide_the_newest(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name = topic(config={"max.message.bytes": 2_000_000})
    big = {"message.max.bytes": 2_000_000, "linger.ms": 0, "batch.size": 1000}
    produce(cluster, name, [{"value": bytes([65 + n]) * 900_000} for n in range(24)], **big)
    answer = console.get(f"/api/topics/{name}/messages", count=24)
    assert offsets(answer)[:3] == [23, 22, 21]
    shown = answer["records"][0]["value"]
    assert shown["truncated"] and shown["size"] == 900_000 and shown["text"].startswith("XXX")
    whole = console.get(f"/api/topics/{name}/messages/0/23")
    assert len(whole["value"]["text"]) == 900_000 and "truncated" not in whole["value"]
    raw = console.http.get(f"/api/topics/{name}/messages/0/23/raw")
    assert raw.content == b"X" * 900_000 and "attachment" in raw.headers["content-disposition"]


def test_text_json_numbers_and_bytes_are_shown_as_what_they_are(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(
        cluster,
        name,
        [
            {"key": "k", "value": json.dumps({"amount": 12345678901234567890})},
            {"key": (42).to_bytes(8, "big"), "value": b"\xff\xfe", "headers": [("trace", b"a1"), ("none", None)]},
            {"key": None, "value": None},
            {"value": "<script>alert(1)</script>"},
        ],
    )
    path = f"/api/topics/{name}/messages"
    first, second, third, fourth = console.get(path, **{"from": "oldest"})["records"]
    assert first["key"] == {"format": "text", "text": "k", "size": 1}
    assert first["value"]["format"] == "json" and "12345678901234567890" in first["value"]["text"]
    assert second["key"]["format"] == "hex" and second["value"]["text"] == "fffe"
    assert [(h["name"], h["format"], h["text"]) for h in second["headers"]] == [
        ("trace", "text", "a1"),
        ("none", "null", ""),
    ]
    assert third["key"]["format"] == third["value"]["format"] == "null"
    assert fourth["value"]["text"] == "<script>alert(1)</script>"
    numbered = console.get(path, **{"from": "oldest", "key": "number", "value": "base64"})["records"]
    assert numbered[1]["key"]["text"] == "42" and numbered[1]["value"]["text"] == "//4="
    assert numbered[0]["key"]["format"] == "number"  # a byte is one, too
    asked = console.get(path, **{"from": "oldest", "value": "json"})["records"][3]["value"]
    assert asked["format"] == "hex" and "not JSON" in asked["note"]


def test_internal_topics_are_shown_as_records(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, group = topic(), f"g-{uuid4()}"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    from confluent_kafka import TopicPartition

    consumer.commit(offsets=[TopicPartition(name, 0, 7)], asynchronous=False)
    consumer.close()
    path = "/api/topics/__consumer_offsets/search"
    found = events(console, path, filter=f'key.data.group == "{group}" && value.data.offset == 7', count=1)
    assert found["end"]["reason"] == "enough"
    key = json.loads(found["records"][0]["key"]["text"])
    assert found["records"][0]["key"]["format"] == "internal" and key["data"]["topic"] == name


def events(console: Console, path: str, **query: Any) -> dict[str, Any]:
    """A search to its end: the records, and the last of every other event."""
    found: dict[str, Any] = {"records": []}
    with console.http.stream("GET", path, params=query) as response:
        assert response.status_code == 200, response.read()
        for name, data in events_of(response):
            document = json.loads(data)
            if name == "records":
                found["records"] += document
            else:
                found[name] = document
    return found


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> Iterator[str]:
    name = "console-orders"
    cluster.create_topic(name, partitions=2)
    produce(
        cluster,
        name,
        [
            {
                "key": f"{n % 50}",
                "value": json.dumps({"id": n, "amount": n * 10, "tags": ["a", "b"] if n % 2 else []}),
                "headers": [("source", b"shop" if n % 10 else b"Kiosk")],
            }
            for n in range(300)
        ],
    )
    yield name


def ids(found: dict[str, Any]) -> set[int]:
    return {json.loads(record["value"]["text"])["id"] for record in found["records"]}


@pytest.mark.parametrize(
    "expression, wanted",
    [
        ('value.amount > 2900 && key.startsWith("4")', {n for n in range(300) if n > 290 and f"{n % 50}"[0] == "4"}),
        ("value.id in [1, 2, 999]", {1, 2}),
        ('headers.source == "Kiosk" && value.amount < 300', {0, 10, 20}),
        ("size(value.tags) == 2 && offset < 0", set()),
        ("value.missing == 1", set()),
    ],
)
def test_expression_finds_exactly_what_it_says(
    console: Console, orders: str, expression: str, wanted: set[int]
) -> None:
    found = events(console, f"/api/topics/{orders}/search", filter=expression, count=1000)
    assert ids(found) == wanted
    assert found["end"]["reason"] == "all" and found["end"]["records"] == 300 and found["end"]["share"] == 1
    assert found["end"]["failed"] == (300 if "missing" in expression else 0)


def test_text_is_found_in_keys_values_and_headers(console: Console, orders: str) -> None:
    path = f"/api/topics/{orders}/search"
    assert ids(events(console, path, text='"ID": 17,', count=1000)) == {17}
    assert ids(events(console, path, text="kiosk", count=1000)) == set(range(0, 300, 10))


def test_search_ends_at_its_bounds_and_says_which(console: Console, orders: str) -> None:
    path = f"/api/topics/{orders}/search"
    enough = events(console, path, filter="value.id >= 0", count=3)
    assert enough["end"]["reason"] == "enough" and len(enough["records"]) == 3
    assert events(console, path, text="nowhere", records=1)["end"]["reason"] == "records"
    assert events(console, path, text="nowhere", bytes=1)["end"]["reason"] == "bytes"
    newest = events(console, path, text="id", count=1)
    oldest = events(console, path, text="id", count=1, **{"from": "oldest"})
    assert min(ids(newest)) > max(ids(oldest))


def test_invalid_expression_is_refused_with_a_sentence(console: Console, orders: str) -> None:
    status, code, message = console.get(f"/api/topics/{orders}/search", filter="value.amount >")
    assert (status, code) == (400, "BAD_REQUEST") and "not CEL" in message
    neither = events(console, f"/api/topics/{orders}/search", filter="value.amount + 1")
    assert neither["end"]["failed"] == 300 and "neither true nor false" in neither["end"]["failure"]


def test_tail_shows_what_comes_in_and_only_what_is_wanted(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    produce(cluster, name, [{"value": "before"}])
    query = {"filter": 'value != "no"'}
    with console.http.stream("GET", f"/api/topics/{name}/tail", params=query) as response:
        stream, seen = events_of(response), list[str]()
        assert next(stream)[0] == "quiet"
        produced = 0
        while "yes" not in seen:  # the tail begins where the topic ends when it looks first
            produced += 1
            produce(cluster, name, [{"value": "no"}, {"value": "yes"}])
            for event, data in stream:
                if event == "records":
                    seen += [record["value"]["text"] for record in json.loads(data)]
                break
        assert set(seen) == {"yes"}


def test_record_produced_here_is_read_by_another_client(
    console: Console, reading_console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    path, record = (
        f"/api/topics/{name}/messages",
        {
            "key": {"text": "clé"},
            "value": {"base64": "AP8="},
            "headers": [{"name": "h", "text": "x"}, {"name": "null"}],
            "partition": 2,
            "timestamp": 1_700_000_000_123,
        },
    )
    assert reading_console.change("POST", path, record)[:2] == (403, "READ_ONLY")
    assert console.change("POST", path, record) == {"partition": 2, "offset": 0}
    assert console.change("POST", path, {"key": {"text": "k"}, "value": None})["partition"] in range(3)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": f"g-{uuid4()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    found = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < 2 and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found[message.key()] = message
    consumer.close()
    first = found["clé".encode()]
    assert (first.value(), first.partition(), first.timestamp()[1]) == (b"\x00\xff", 2, 1_700_000_000_123)
    assert first.headers() == [("h", b"x"), ("null", None)]
    assert found[b"k"].value() is None
    assert console.change("POST", path, {"value": "bare"})[:2] == (400, "BAD_REQUEST")
    assert console.change("POST", path, {"value": {"text": "x"}, "partition": 9})[:2] == (400, "BAD_REQUEST")


def test_export_is_what_a_search_finds_as_json_lines_and_parquet(
    console: Console, cluster: Cluster, orders: str
) -> None:
    import pyarrow.parquet

    query = {"filter": "value.amount >= 2950", "from": "oldest"}
    lines = console.http.get(f"/api/topics/{orders}/export", params=query)
    assert f'filename="{orders}.jsonl"' in lines.headers["content-disposition"]
    documents = [json.loads(line) for line in lines.text.splitlines()]
    assert {document["value"]["id"] for document in documents} == {295, 296, 297, 298, 299}
    first = next(document for document in documents if document["value"]["id"] == 295)
    assert first["key"] == "45" and first["headers"] == [{"name": "source", "value": "shop"}]
    data = console.http.get(f"/api/topics/{orders}/export", params=query | {"format": "parquet"}).content
    table = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    assert [row["offset"] for row in table] == [document["offset"] for document in documents]
    row = next(row for row in table if row["key"] == b"45")
    assert json.loads(row["value_text"])["id"] == 295 and row["headers"] == [{"name": "source", "value": b"shop"}]
    assert round(row["timestamp"].timestamp() * 1000) == first["timestamp"]
    assert console.get(f"/api/topics/{orders}/export", format="csv")[:2] == (400, "BAD_REQUEST")


#: A header's name may be any bytes, and JSON may escape half a surrogate pair.
NOT_UTF8 = [
    Record(value=b"good"),
    Record(value=b"x", headers=[("\udcff", b"v")]),
    Record(value=b'\0\0\0\0\7{"half": "\\ud800"}'),
]


def test_text_that_utf8_cannot_encode_spoils_neither_pages_nor_exports(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    import pyarrow.parquet

    name = topic()
    cluster.produce(name, NOT_UTF8)
    page = console.http.get(f"/api/topics/{name}/messages")
    assert page.content.decode() and len(page.json()["records"]) == 3
    lines = console.http.get(f"/api/topics/{name}/export", params={"from": "oldest"}).content.decode().splitlines()
    assert json.loads(lines[1])["headers"] == [{"name": "\udcff", "value": "v"}]
    data = console.http.get(f"/api/topics/{name}/export", params={"format": "parquet", "from": "oldest"}).content
    rows = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    assert [row["headers"] for row in rows] == [[], [{"name": "?", "value": b"v"}], []]


@pytest.mark.parametrize(
    "body", [{"value": {"text": "\ud800"}}, {"value": None, "headers": [{"name": "\ud800"}]}], ids=["value", "header"]
)
def test_text_that_utf8_cannot_encode_is_not_produced(
    console: Console, topic: Callable[..., str], body: dict[str, Any]
) -> None:
    escaped, kind = json.dumps(body), {"content-type": "application/json"}
    refused = answer_of(console.http.post(f"/api/topics/{topic()}/messages", content=escaped, headers=kind))
    assert refused[:2] == (400, "BAD_REQUEST") and "surrogate" in refused[2]


@pytest.mark.parametrize("written", ["0%0A", "%D9%A0", "+0"])
def test_odd_number_of_a_partition_does_not_get_into_a_header(
    console: Console, cluster: Cluster, topic: Callable[..., str], written: str
) -> None:
    name = topic()
    cluster.produce(name, [b"x"])
    answer = console.http.get(f"/api/topics/{name}/messages/{written}/0/raw")
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}-0-0.value"'

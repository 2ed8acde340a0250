"""Pipelines through the console's API: reports of queries, invalid reports, and replayed dead letters."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from barnabas.base.ids import Offset
from barnabas.base.topics import PIPELINES_TOPIC
from barnabas.cli.local_cluster import wait_until
from barnabas.client import error_headers
from barnabas.services.console.pipelines import queries_of
from barnabas.testing import Broker, Cluster
from barnabas.wire.records import Record
from tests.scenarios.console.conftest import Console, running

DEADLINE_S = 60.0


def report(batch: int, at_ms: int, **more: object) -> dict[str, object]:
    progress = {"batch": batch, "rows": 10, "rows_per_second": 5.0 * batch, "batch_ms": 100, "lag": 3}
    known = {"pipeline": "shop", "query": "totals", "state": "running", "at_ms": at_ms, "progress": progress}
    return {**known, "topics": ["orders"], "dead_letters": ["orders-dead"], **more}


def record(offset: int, value: object, key: bytes | None = b"shop/totals") -> tuple[int, Record]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return 0, Record(Offset(offset), 0, key, data, ())


def test_last_report_counts_and_those_before_are_its_history() -> None:
    reports = [record(2, report(2, 2_000)), record(1, report(1, 1_000)), record(0, report(1, 900))]
    [query] = queries_of(reports, now_ms=3_000)
    assert (query["query"], query["progress"]["batch"], query["silent"]) == ("totals", 2, False)
    assert [each["rows_per_second"] for each in query["history"]] == [5.0, 10.0]


def test_query_that_says_nothing_for_long_is_silent_and_one_that_ended_is_not() -> None:
    [query] = queries_of([record(0, report(1, 1_000))], now_ms=60_000)
    assert query["silent"]
    [query] = queries_of([record(0, report(1, 1_000, state="ended"))], now_ms=60_000)
    assert not query["silent"]


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'"text"', b"{}", b'{"at_ms": "soon"}', b"\xff\xfe"])
def test_record_that_is_not_a_report_is_skipped(value: bytes) -> None:
    assert queries_of([record(0, value)], now_ms=0) == []


def test_odd_fields_of_a_report_do_no_harm() -> None:
    odd = {"at_ms": 1, "pipeline": 7, "progress": "fast", "dead_letters": "x", "topics": [1, "t"], "error": {"a": 1}}
    [query] = queries_of([record(0, odd)], now_ms=0)
    assert (query["pipeline"], query["progress"], query["dead_letters"], query["topics"]) == ("7", None, [], ["t"])
    assert queries_of([record(0, odd, key=None)], now_ms=0) == []


@pytest.fixture(scope="module")
def shop() -> Iterator[Cluster]:
    """A query has reported, and has left two dead letters."""
    with Cluster(brokers=1) as cluster:
        cluster.create_topic(PIPELINES_TOPIC)
        cluster.create_topic("orders")
        cluster.create_topic("orders-dead")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(PIPELINES_TOPIC, json.dumps(report(4, 1_000)), b"shop/totals")
        for number in range(2):
            headers = [(error_headers.TOPIC, b"orders"), ("own", b"kept")]
            producer.produce("orders-dead", f"bad {number}", headers=headers)
        assert producer.flush(DEADLINE_S) == 0
        yield cluster


@pytest.fixture(scope="module")
def shop_console(shop: Cluster) -> Iterator[Console]:
    with running(shop, read_write=True) as console:
        yield console


def test_dead_letters_are_counted_previewed_and_replayed_once(shop_console: Console) -> None:
    view = shop_console.get("/api/pipelines")
    assert [query["query"] for query in view["queries"]] == ["totals"]
    assert view["deadLetters"] == [{"topic": "orders-dead", "error": None, "letters": 2, "waiting": 2}]
    preview = shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead"})
    assert (preview["dryRun"], preview["replayed"]) == (True, {"orders": 2})
    done = shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "dryRun": False})
    assert done["replayed"] == {"orders": 2}
    again = shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "dryRun": False})
    assert again["replayed"] == {}
    wait_until(
        lambda: shop_console.get("/api/pipelines")["deadLetters"][0]["waiting"] == 0, DEADLINE_S, what="none that waits"
    )


def test_report_that_names_an_impossible_topic_does_not_take_the_page_away() -> None:
    names = ["\ud800", "x" * 40_000, "a/b", ""]
    with Broker() as kafka, running(kafka) as console:
        kafka.create_topic(PIPELINES_TOPIC)
        kafka.produce(PIPELINES_TOPIC, [(b"odd/query", json.dumps(report(1, 1_000, dead_letters=names)).encode())])
        view = console.get("/api/pipelines")
    assert [each["topic"] for each in view["deadLetters"]] == names
    assert all(each["letters"] in (None, 0) for each in view["deadLetters"])


def test_replay_that_makes_no_sense_is_refused(shop_console: Console) -> None:
    assert shop_console.change("POST", "/api/pipelines/replay", {})[0] == 400
    assert shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "limit": 0})[0] == 400
    assert shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "to": 7})[0] == 400
    refused = shop_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "to": "orders-dead"})
    assert refused[:2] == (409, "NOT_REPLAYED")


def test_console_that_only_reads_replays_nothing(reading_console: Console) -> None:
    refused = reading_console.change("POST", "/api/pipelines/replay", {"from": "orders-dead", "dryRun": False})
    assert refused[0] == 403


def test_cluster_without_pipelines_says_so(console: Console) -> None:
    view = console.get("/api/pipelines")
    assert (view["queries"], view["deadLetters"], view["topic"]) == ([], [], PIPELINES_TOPIC)

"""The latest metrics of clients, and their page: bounded, and nothing that a client writes changes another metric."""

import re
import tracemalloc

from prometheus_client.parser import text_string_to_metric_families

from barnabas.broker.features.client_metrics import otlp
from barnabas.broker.features.client_metrics.otlp import Labels, Pushed, Series
from barnabas.broker.features.client_metrics.store import INFO, Store, prometheus_name
from tests.support.otlp_data import LATENCY
from tests.unit.broker.features.client_metrics.test_instances import client

INTERVAL_MS = 60_000


def push(store: Store, number: int, *series: Series, now_ms: int = 0, client_id: str = "orders") -> None:
    store.add(client(number, client_id), Pushed(list(series)), interval_ms=INTERVAL_MS, now_ms=now_ms, is_ended=False)


def one(value: float, name: str = LATENCY, labels: Labels = (), *, is_delta: bool = False) -> Series:
    return Series(name, labels, value, is_delta)


def samples(store: Store, now_ms: int = 0) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(store.page(now_ms).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_page_has_each_series_with_its_client() -> None:
    store = Store(100)
    push(store, 7, one(1.5, labels=(("node_id", "1"),)))
    found = samples(store)
    labels, value = found["kafka_client_producer_node_request_latency_avg"][0]
    assert value == 1.5
    assert (labels["client_id"], labels["node_id"]) == ("orders", "1")
    assert found[INFO][0][0]["client_software_version"] == "2.16.0"


def test_latest_value_counts_and_differences_are_added() -> None:
    store = Store(100)
    push(store, 7, one(1.0), one(1.0, "d", is_delta=True))
    push(store, 7, one(5.0), one(2.0, "d", is_delta=True))
    assert samples(store)["kafka_client_producer_node_request_latency_avg"][0][1] == 5.0
    assert samples(store)["kafka_client_d"][0][1] == 3.0


def test_clients_and_series_that_are_silent_for_three_intervals_go() -> None:
    store = Store(100)
    push(store, 7, one(1.0), one(1.0, "former"))
    push(store, 8, one(1.0))
    push(store, 7, one(1.0), now_ms=3 * INTERVAL_MS + 1)
    assert set(samples(store, 3 * INTERVAL_MS + 1)) == {INFO, prometheus_name(LATENCY)}
    assert len(store.clients) == 1
    assert samples(store, 10 * INTERVAL_MS) == {}


def test_clients_whose_last_push_is_the_oldest_make_room() -> None:
    store = Store(10)
    for number in range(2, 7):
        push(store, number, *(one(1.0, f"m{n}") for n in range(4)))
    assert list(store.clients) == [each.to_bytes(16) for each in (5, 6)]
    assert (store.series_count(), store.dropped) == (8, 12)
    push(store, 9, *(one(1.0, f"m{n}") for n in range(30)))
    assert store.clients.weight <= 10


def test_names_and_labels_of_clients_cannot_pass_for_others() -> None:
    hostile = 'x"} 1\nkafka_server_up{a="\\'
    store = Store(100)
    push(
        store,
        7,
        one(1.0, 'up 1\nkafka_server_replicamanager_isr_shrinks_total{a="b"}', (("__name__", "up"), ("9", hostile))),
        one(2.0, "info", (("client_id", "another"), ("client_instance_id", "another"))),
        one(3.0, "\n"),
        client_id=hostile,
    )
    found = samples(store)
    assert all(name == INFO or name.startswith("kafka_client_") for name in found)
    assert {labels["client_id"] for rows in found.values() for labels, _ in rows} == {hostile}
    assert all(re.fullmatch("[a-zA-Z][a-zA-Z0-9_]*|_[0-9]", each) for rows in found.values() for each in rows[0][0])


def test_series_whose_names_differ_only_in_other_characters_are_one_line() -> None:
    store = Store(100)
    push(store, 7, one(1.0, "a.b"), one(2.0, "a-b"))
    assert [value for _, value in samples(store)["kafka_client_a_b"]] == [2.0]


def test_hostile_clients_cannot_fill_the_memory() -> None:
    """The default bound, and the longest texts that are taken."""
    store = Store(10_000)
    wide = "\N{GRINNING FACE}" * ((otlp.TEXT_BYTES_MAX - 20) // 4)
    tracemalloc.start()
    try:
        for number in range(2, 60):
            push(
                store,
                number,
                *(one(1.0, f"m{n}", (("l", f"{wide}{n}"),)) for n in range(otlp.SERIES_MAX)),
                client_id=wide,
            )
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.clients.weight <= 10_000
    assert kept_bytes < 40 << 20

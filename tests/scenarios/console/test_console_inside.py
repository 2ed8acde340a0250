"""The internal views through the console's API, on real brokers: their combined answers, and the errors without them."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.base.errors import ConfigError
from barnabas.cli.local_cluster import wait_until
from barnabas.client.config import client_config
from barnabas.services.console.inside_sources import InsideSources
from barnabas.services.console.settings import Settings
from barnabas.testing import Cluster
from tests.scenarios.console.conftest import Console, running

DEADLINE_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with Cluster(brokers=2, inside=True) as cluster:
        yield cluster


@pytest.fixture
def filled(brokers: Cluster) -> str:
    """A topic of its own for a test, with twenty records."""
    name = f"orders-{next(_numbers)}"
    brokers.create_topic(name, replication_factor=2)
    brokers.wait_for_isr(name, 2)
    produce(brokers, name, 20)
    return name


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(DEADLINE_S) == 0


def addresses(cluster: Cluster) -> str:
    return ",".join(cluster.inside_url(each) for each in cluster.broker_ids)


@pytest.fixture(scope="module")
def looking(brokers: Cluster) -> Iterator[Console]:
    with running(brokers, inside=addresses(brokers)) as console:
        yield console


def test_replicas_stand_side_by_side(looking: Console, filled: str) -> None:
    view = looking.get(f"/api/inside/partitions/{filled}/0")
    assert [each["error"] for each in view["replicas"]] == [None, None]
    assert sorted(each["view"]["role"] for each in view["replicas"]) == ["follower", "leader"]
    assert {each["view"]["log"]["log_end"] for each in view["replicas"]} == {20}


def test_partition_moves_through_the_event_stream(looking: Console, brokers: Cluster, filled: str) -> None:
    path = f"/api/inside/partitions/{filled}/0"
    with looking.watching(path) as events:
        next(events)
        produce(brokers, filled, 1)
        for event, data in events:
            assert event == path
            if '"log_end":21' in data:
                break


def test_segments_come_when_asked_for(looking: Console, filled: str) -> None:
    view = looking.get(f"/api/inside/partitions/{filled}/0", segments="true")
    assert all(each["view"]["segments"][0]["is_active"] for each in view["replicas"])


def test_missing_partition_is_not_found(looking: Console, filled: str) -> None:
    assert looking.get("/api/inside/partitions/nowhere/0")[0] == 404
    assert looking.get(f"/api/inside/partitions/{filled}/7")[0] == 404
    assert looking.get(f"/api/inside/partitions/{filled}/x")[0] == 400
    assert looking.get("/api/inside/znode", path="/nothing")[0] == 404
    assert looking.get("/api/inside/znode", path="nothing")[0] == 400


def test_followers_that_wait_are_shown(looking: Console, brokers: Cluster) -> None:
    brokers.create_topic("led-by-both", partitions=2, replication_factor=2)

    def followers() -> set[str]:
        waiting = looking.get("/api/inside/waiting")["brokers"]
        return {row["client_id"] for each in waiting for row in each["view"]["waiting"] if row["api"] == "Fetch"}

    wait_until(lambda: len(followers()) == 2, DEADLINE_S, what="both brokers' fetches")
    one = looking.get("/api/inside/waiting", broker=1)["brokers"]
    assert [each["broker"] for each in one] == [1]


def test_requests_are_kept_from_the_first_look_on(looking: Console, filled: str) -> None:
    def fetches() -> int:
        kept = looking.get("/api/inside/requests", api="Fetch")["brokers"]
        return sum(len(each["view"]["requests"]["Fetch"]) for each in kept)

    wait_until(lambda: fetches() > 0, DEADLINE_S, what="a traced fetch")


def test_timeline_names_the_controller_and_its_elections(looking: Console, brokers: Cluster, filled: str) -> None:
    view = looking.get("/api/inside/controller")
    assert view["controller"] == brokers.controller()
    assert view["silent"] == []
    elected = [each for each in view["decisions"] if each["what"] == "leaders elected"]
    assert any(change["topic"] == filled for each in elected for change in each["details"]["partitions"])
    assert [each["at_ms"] for each in view["decisions"]] == sorted(
        (each["at_ms"] for each in view["decisions"]), reverse=True
    )


def test_znode_shows_its_owner_and_its_watchers(looking: Console, brokers: Cluster) -> None:
    node = looking.get("/api/inside/znode", path="/controller")
    assert node["owner"] == brokers.controller()
    assert {each["broker"] for each in node["watchers"]} == {1, 2}


def test_transactions_of_all_coordinators_are_one_list(looking: Console, brokers: Cluster, filled: str) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": "billing"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(filled, b"maybe")
    assert producer.flush(DEADLINE_S) == 0

    def billing() -> str | None:
        rows = looking.get("/api/inside/transactions")["transactions"]
        return next((row["state"] for row in rows if row["transactional_id"] == "billing"), None)

    wait_until(lambda: billing() == "Ongoing", DEADLINE_S, what="the open transaction")
    view = looking.get(f"/api/inside/partitions/{filled}/0/producers")["view"]
    assert any(each["transaction_first_offset"] is not None for each in view["producers"])
    producer.abort_transaction(DEADLINE_S)


def test_broker_that_died_is_shown_as_silent() -> None:
    with Cluster(brokers=2, inside=True) as cluster:
        cluster.create_topic("orders", replication_factor=2)
        cluster.wait_for_isr("orders", 2)
        with running(cluster, inside=addresses(cluster)) as console:
            assert console.get("/api/inside")["isAvailable"]
            victim = next(each for each in cluster.broker_ids if each != cluster.controller())
            cluster.kill(victim)

            def silence() -> bool:
                answer = console.get("/api/inside/partitions/orders/0")
                if isinstance(answer, tuple):
                    return False  # the console asks the dead broker for metadata, and will ask another one
                [row] = [each for each in answer["replicas"] if each["broker"] == victim]
                return row["view"] is None and "does not answer" in row["error"]

            wait_until(silence, DEADLINE_S, what="silence")


def test_addresses_are_found_in_the_settings_of_the_brokers() -> None:
    """A broker that is started again has the port that it had picked in its settings."""
    with Cluster(brokers=2, inside=True) as cluster:
        cluster.restart(1)
        with running(cluster, inside="auto") as console:

            def found() -> dict[int, dict[str, Any]]:
                return {each["broker"]: each for each in console.get("/api/inside")["brokers"]}

            wait_until(lambda: set(found()) == {1, 2}, DEADLINE_S, what="both brokers in the metadata")
            assert found()[1]["view"]["broker"] == 1
            why = "barnabas.metrics.port=0 picks a free port: start the console with --inside URL"
            assert found()[2]["error"] == why


def test_brokers_that_show_nothing_say_how_to_change_that(console: Console) -> None:
    view = console.get("/api/inside")
    assert not view["isAvailable"]
    assert [each["error"] for each in view["brokers"]] == ["barnabas.inside.enable is not true"]


def test_console_without_inside_says_so(cluster: Cluster) -> None:
    with running(cluster, inside="none") as console:
        assert console.get("/api/inside")[:2] == (404, "NO_INSIDE")


def test_internal_views_need_the_right_to_read_settings() -> None:
    with Cluster(brokers=1, inside=True, secure=True) as cluster:
        console = Console(
            Settings(client=client_config(None, cluster.client_settings()), port=0, inside=cluster.inside_url(1))
        )
        try:
            assert console.get("/api/inside")[:2] == (403, "CLUSTER_AUTHORIZATION_FAILED")
            assert console.get("/api/inside/znode", path="/")[0] == 403
        finally:
            console.stop()


@pytest.mark.parametrize(
    "address", ["localhost:9404", "ftp://host:1", "http://", "http://host:9404/{topic}", "http://host:x"]
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        InsideSources(address)


def test_pages_that_explain_are_served(console: Console) -> None:
    page = console.get("/api/docs/inside")
    assert "## The high watermark" in page["text"]
    assert {"index", "operating", "formats.checkpoints"} <= set(page["pages"])
    for name in page["pages"]:
        assert console.get(f"/api/docs/{name}")["text"].startswith("# "), name
    assert console.get("/api/docs/..%2Fsecret")[0] == 404

"""The brokers' `/inside` on a real cluster: offsets, followers, waiting requests, decisions, producers, znodes."""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.broker.runtime.timers import SLOT_MS
from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import Cluster, wait_until
from tests.scenarios.inside.inside_client import ask, look


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # A follower that is cut off for a while stays in the ISR.
    with Cluster(brokers=3, inside=True, config={"replica.lag.time.max.ms": "600000"}) as cluster:
        yield cluster


@contextmanager
def cut_off_follower(cluster: Cluster, leader: int) -> Iterator[None]:
    cluster.cut_off(next(each for each in cluster.broker_ids if each not in (leader, cluster.controller())))
    try:
        yield
    finally:
        cluster.heal()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    cluster.create_topic(name, replication_factor=3)
    cluster.wait_for_isr(name, 3)
    return name


def produce(cluster: Cluster, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **settings})
    for number in range(count):
        producer.produce(topic, f"value {number}", partition=0)
    assert producer.flush(60) == 0


def test_replicas_of_a_partition_are_shown_side_by_side(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 100)
    leader = cluster.leader_of(topic)

    def is_caught_up(broker_id: int) -> bool:
        return look(cluster, broker_id, "partition", topic=topic, partition=0)["log"]["high_watermark"] == 100

    for broker_id in cluster.broker_ids:
        wait_until(lambda: is_caught_up(broker_id), 60, what=f"the high watermark of broker {broker_id}")  # noqa: B023
    views = {each: look(cluster, each, "partition", topic=topic, partition=0) for each in cluster.broker_ids}
    assert {each: view["role"] for each, view in views.items()} == {
        each: "leader" if each == leader else "follower" for each in cluster.broker_ids
    }
    for view in views.values():
        log = view["log"]
        assert (log["log_start"], log["last_stable_offset"], log["log_end"]) == (0, 100, 100)
        assert log["epochs"] == [{"epoch": view["leader_epoch"], "start_offset": 0}]
        assert view["leader"] == leader


def test_leader_tells_the_lag_of_its_followers(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 10)
    leader = cluster.leader_of(topic)

    def lags() -> list[tuple[int | None, int | None]]:
        leadership = look(cluster, leader, "partition", topic=topic, partition=0)["leadership"]
        assert leadership["isr"] == [1, 2, 3]
        return [(each["lag_records"], each["lag_ms"]) for each in leadership["followers"]]

    wait_until(lambda: lags() == [(0, 0), (0, 0)], 60, what="followers that have caught up")


def test_follower_that_stands_still_lags_in_records_and_in_time(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader_of(topic)

    def have_fetched() -> bool:
        followers = look(cluster, leader, "partition", topic=topic, partition=0)["leadership"]["followers"]
        return all(each["lag_records"] == 0 and each["last_fetch_ms_ago"] is not None for each in followers)

    # The leader does not know how far a follower is that was cut off before its first fetch.
    wait_until(have_fetched, 60, what="the first fetch of each follower")
    with cut_off_follower(cluster, leader):
        produce(cluster, topic, 7, acks=1)

        def is_behind() -> bool:
            followers = look(cluster, leader, "partition", topic=topic, partition=0)["leadership"]["followers"]
            assert all(each["in_sync"] for each in followers)
            return any(each["lag_records"] == 7 and each["lag_ms"] >= 100 for each in followers)

        wait_until(is_behind, 60, what="a lag")


def test_segments_are_shown_with_their_files(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 10)
    leader = cluster.leader_of(topic)
    view = look(cluster, leader, "partition", topic=topic, partition=0, segments="true")
    [segment] = view["segments"]
    assert segment["is_active"]
    assert segment["size_bytes"] == view["log"]["size_bytes"] > 0
    stem = "0" * 20
    assert segment["files"][f"{stem}.log"] >= segment["size_bytes"]
    assert f"{stem}.index" in segment["files"] and f"{stem}.timeindex" in segment["files"]
    assert "segments" not in look(cluster, leader, "partition", topic=topic, partition=0)


def test_partition_that_is_not_here_is_not_found(cluster: Cluster) -> None:
    status, answer = ask(cluster, 1, "partition", topic="nowhere", partition=0)
    assert (status, answer["error"]) == (404, "no replica of nowhere-0 on broker 1")
    assert ask(cluster, 1, "partition", topic="nowhere", partition="x")[0] == 400
    assert ask(cluster, 1, "partition")[0] == 400


@contextmanager
def long_poll(cluster: Cluster, topic: str) -> Iterator[None]:
    """A consumer that waits for a megabyte that never arrives."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "waiting",
            "client.id": "patient",
            "fetch.min.bytes": 1_000_000,
            "fetch.wait.max.ms": 20_000,
            "socket.timeout.ms": 60_000,
        }
    )
    ended = threading.Event()
    consumer.subscribe([topic])

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        consumer.close()


def test_waiting_fetch_is_shown_with_its_client_its_bytes_and_its_age(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader_of(topic)

    def patient() -> list[dict[str, object]]:
        waiting = look(cluster, leader, "waiting")["waiting"]
        return [each for each in waiting if each["client_id"] == "patient" and each["api"] == "Fetch"]

    with long_poll(cluster, topic):
        wait_until(lambda: len(patient()) == 1, 60, what="a fetch that waits")
        [fetch] = patient()
        waits_for = fetch["waits_for"]
        assert isinstance(waits_for, dict)
        assert waits_for["condition"] == "bytes"
        assert waits_for["partitions"] == [{"topic": topic, "partition": 0}]
        assert isinstance(fetch["expires_in_ms"], int) and 0 <= fetch["expires_in_ms"] <= 20_000 + SLOT_MS
        assert fetch["host"] == "127.0.0.1" and fetch["user"] == "User:ANONYMOUS"


def test_produce_that_waits_for_its_replicas_names_the_offset(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader_of(topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "client.id": "waits"})
    with cut_off_follower(cluster, leader):
        producer.produce(topic, b"held", partition=0)

        def held() -> list[dict[str, object]]:
            waiting = look(cluster, leader, "waiting")["waiting"]
            return [each for each in waiting if each["client_id"] == "waits" and each["api"] == "Produce"]

        def poll() -> bool:
            producer.poll(0)
            return len(held()) == 1

        wait_until(poll, 60, what="a produce that waits")
        assert held()[0]["waits_for"] == {
            "condition": "high watermark",
            "count": 1,
            "partitions": [{"topic": topic, "partition": 0, "offset": 1, "high_watermark": 0}],
        }
    assert producer.flush(60) == 0


def test_requests_are_kept_while_the_view_is_used(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader_of(topic)
    look(cluster, leader, "requests")
    produce(cluster, topic, 3, **{"client.id": "traced"})
    kept = look(cluster, leader, "requests", api="Produce")
    assert kept["was_on"]
    traced = [each for each in kept["requests"]["Produce"] if each["client_id"] == "traced"]
    assert traced
    last = traced[-1]
    stages = last["queue_ms"] + last["local_ms"] + last["remote_ms"] + last["response_queue_ms"]
    assert stages == pytest.approx(last["total_ms"], abs=0.01)
    assert last["request_bytes"] > 0


def test_controller_shows_its_decisions_and_their_reasons(cluster: Cluster, topic: str) -> None:
    controller = cluster.controller()
    view = look(cluster, controller, "controller")
    assert view["is_controller"] and view["controller"] == controller
    elections = [
        each
        for each in view["decisions"]
        if each["what"] == "leaders elected"
        and any(partition["topic"] == topic for partition in each["details"]["partitions"])
    ]
    assert elections[0]["why"] == "/brokers/topics changed"
    [change] = [each for each in elections[0]["details"]["partitions"] if each["topic"] == topic]
    assert change["leader_before"] is None
    assert sorted(change["isr"]) == [1, 2, 3]
    assert any(each["what"] == "took over as controller" for each in view["decisions"])


def test_hand_over_after_a_kill_is_on_the_timeline() -> None:
    with Cluster(brokers=3, inside=True) as cluster:
        cluster.create_topic("orders", replication_factor=3)
        cluster.wait_for_isr("orders", 3)
        controller = cluster.controller()
        victim = next(each for each in cluster.broker_ids if each != controller)
        url = cluster.inside_url(victim)
        cluster.kill(victim)

        def saw(what: str, **details: object) -> bool:
            decisions = look(cluster, controller, "controller")["decisions"]
            return any(each["what"] == what and details.items() <= each["details"].items() for each in decisions)

        wait_until(
            lambda: saw("broker counts as gone", broker=victim) or saw("brokers changed", went=[victim]),
            60,
            what="the news that it is gone",
        )
        cluster.start_broker(victim)
        # The restarted broker has the same address for its views.
        assert cluster.inside_url(victim) == url
        assert look(cluster, victim)["broker"] == victim
        wait_until(lambda: saw("ISR changed"), 60, what="the return to the ISR")


def test_open_transaction_is_shown_by_log_and_coordinator(cluster: Cluster, topic: str) -> None:
    name = f"tx-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(60) == 0

    def coordinated() -> list[dict[str, object]]:
        return [
            each
            for broker_id in cluster.broker_ids
            for each in look(cluster, broker_id, "transactions")["transactions"]
            if each["transactional_id"] == name
        ]

    [transaction] = coordinated()
    assert transaction["state"] == "Ongoing"
    assert transaction["partitions"] == [{"topic": topic, "partition": 0}]
    leader = cluster.leader_of(topic)
    [entry] = look(cluster, leader, "producers", topic=topic, partition=0)["producers"]
    assert entry["producer_id"] == transaction["producer_id"]
    assert entry["transaction_first_offset"] == 0
    assert look(cluster, leader, "partition", topic=topic, partition=0)["log"]["last_stable_offset"] == 0
    producer.commit_transaction(60)
    wait_until(lambda: coordinated()[0]["state"] == "CompleteCommit", 60, what="the end of the transaction")


def test_znodes_are_shown_with_their_data_owner_and_watches(cluster: Cluster, topic: str) -> None:
    controller = cluster.controller()
    root = look(cluster, controller, "znode")
    assert {"brokers", "controller", "config"} <= set(root["children"])
    node = look(cluster, controller, "znode", path="/controller")
    assert node["data"]["brokerid"] == controller
    assert node["ephemeral_owner"] == look(cluster, controller)["zookeeper_session"]
    assert "data" in node["watched_here"]
    ids = look(cluster, controller, "znode", path="/brokers/ids")
    assert ids["children"] == ["1", "2", "3"] and ids["watched_here"] == ["children"]
    state = look(cluster, controller, "znode", path=f"/brokers/topics/{topic}/partitions/0/state")
    assert sorted(state["data"]["isr"]) == [1, 2, 3]
    assert ask(cluster, controller, "znode", path="/nothing")[0] == 404
    assert ask(cluster, controller, "znode", path="brokers")[0] == 400


def test_verifiers_of_users_stay_hidden() -> None:
    with Cluster(brokers=1, inside=True, secure=True) as cluster:
        users = look(cluster, 1, "znode", path="/config/users")
        node = look(cluster, 1, "znode", path=f"/config/users/{users['children'][0]}")
        assert node["data"]["config"] and set(node["data"]["config"].values()) == {"(hidden)"}


def test_nothing_is_shown_unless_asked_for(new_cluster: Callable[..., LocalCluster]) -> None:
    cluster = new_cluster(brokers=1, config={"barnabas.metrics.port": "0"})
    fields = dict(part.split("=", 1) for part in (cluster.member(1).ready_line or "").split()[1:])
    host, _, port = fields["metrics"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(b"GET /inside HTTP/1.1\r\n\r\n")
        with sock.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"404"

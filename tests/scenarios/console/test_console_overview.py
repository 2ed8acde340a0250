"""The cluster at a glance, also while a broker is gone."""

import time
from collections.abc import Iterator

import pytest

from barnabas.testing import Cluster
from tests.scenarios.console.conftest import Console, events_of, eventually, running


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def console_of_three(three: Cluster) -> Iterator[Console]:
    with running(three, read_write=True) as console:
        yield console


def test_overview_shows_brokers_controller_and_throughput(three: Cluster, console_of_three: Console) -> None:
    console = console_of_three
    three.create_topic("t", partitions=6)
    answer = eventually(
        lambda: console.get("/api/overview"),
        lambda a: a["topics"] >= 1 and a["offline"] == a["underReplicated"] == 0 and len(a["brokers"]) == 3,
    )
    assert [broker["id"] for broker in answer["brokers"]] == [1, 2, 3]
    assert sum(broker["isController"] for broker in answer["brokers"]) == 1
    assert sum(b["leaders"] for b in answer["brokers"]) == answer["partitions"] >= 6
    assert sum(b["replicas"] for b in answer["brokers"]) >= answer["partitions"] + 12
    assert len(answer["clusterId"]) == 22
    assert all(broker["answerMs"] is None or broker["answerMs"] > 0 for broker in answer["brokers"])

    def produce_and_ask() -> dict:  # type: ignore[type-arg]
        three.produce("t", [b"v"] * 10)
        return dict(console.get("/api/overview"))

    busy = eventually(produce_and_ask, lambda a: bool(a["rate"]) and bool(a["size"]))
    assert len(busy["charts"]["at"]) == len(busy["charts"]["rate"]) == len(busy["charts"]["answerMs"]["1"])


def test_created_topic_is_there_at_once_whichever_broker_is_asked(console_of_three: Console) -> None:
    for number in range(5):
        console_of_three.change("POST", "/api/topics", {"name": f"at-once-{number}", "partitions": 3})
        assert console_of_three.get(f"/api/topics/at-once-{number}")["partitions"] == 3
        console_of_three.change("POST", f"/api/topics/at-once-{number}/partitions", {"partitions": 4})
        assert console_of_three.get(f"/api/topics/at-once-{number}")["partitions"] == 4


def test_findings_of_the_doctor_are_shown(console_of_three: Console) -> None:
    answer = console_of_three.get("/api/doctor")
    assert {finding["severity"] for finding in answer["findings"]} <= {"error", "warning", "note"}
    assert console_of_three.get("/api/doctor")["at"] == answer["at"]
    assert console_of_three.get("/api/doctor", again=1)["at"] > answer["at"]


def test_partitions_that_refuse_writes_are_shown_within_seconds_and_doctor_looks_again(
    three: Cluster, console_of_three: Console
) -> None:
    console = console_of_three
    three.create_topic("strict", partitions=4, replication_factor=3, config={"min.insync.replicas": "3"})
    three.create_topic("lenient", partitions=4, replication_factor=3, config={"min.insync.replicas": "2"})
    well = eventually(lambda: console.get("/api/overview"), lambda a: a["underReplicated"] == a["underMinIsr"] == 0)
    assert well["underMinIsrSome"] == []
    before = console.get("/api/doctor")
    three.kill(3)
    try:
        three.wait_for_isr("strict", 2)
        began_s = time.monotonic()
        eventually(
            lambda: console.get("/api/overview"),
            lambda a: isinstance(a, dict) and a["underMinIsrSome"] == [f"strict-{index}" for index in range(4)],
        )
        assert time.monotonic() - began_s < 5
        answer = eventually(
            lambda: console.get("/api/doctor"),
            lambda a: isinstance(a, dict) and "partitions-under-min-isr" in {each["check"] for each in a["findings"]},
        )
        assert answer["at"] > before["at"]
    finally:
        three.start_broker(3)
    eventually(lambda: console.get("/api/overview"), lambda a: isinstance(a, dict) and a["underMinIsr"] == 0)


def test_dead_broker_is_shown_and_topics_can_still_be_read(three: Cluster, console_of_three: Console) -> None:
    console = console_of_three
    three.create_topic("u", partitions=3)
    three.produce("u", [b"v"] * 9)
    leaderless = {"config": {"min.insync.replicas": "1"}}
    three.create_topic("single", partitions=3, replication_factor=1, **leaderless)
    three.kill(2)
    try:
        answer = eventually(
            lambda: console.get("/api/overview"),
            lambda a: isinstance(a, dict) and not a["brokers"][1]["isAlive"] and a["offline"] == 1,
        )
        assert answer["underReplicated"] > 0 and answer["brokers"][1]["outOfSync"] > 0
        page = eventually(lambda: console.get("/api/topics/u/messages"), lambda a: isinstance(a, dict))
        assert len(page["records"]) == 9
        rest = console.get("/api/topics/single/messages")
        assert len(rest["withoutLeader"]) == 1 and len(rest["partitions"]) == 2
        detail = console.get("/api/topics/single")
        assert detail["offline"] == 1
        assert console.get("/api/topics", search="single")["topics"][0]["offline"] == 1
    finally:
        three.start_broker(2)


def test_tail_of_a_partition_without_leader_waits_and_delays_no_other_request(
    three: Cluster, console_of_three: Console
) -> None:
    console = console_of_three
    three.create_topic("alone", partitions=3, replication_factor=1, config={"min.insync.replicas": "1"})
    three.kill(2)
    is_down = True
    try:
        page = eventually(
            lambda: console.get("/api/topics/alone/messages"),
            lambda a: isinstance(a, dict) and len(a["withoutLeader"]) == 1,
        )
        [partition] = page["withoutLeader"]
        with console.http.stream("GET", "/api/topics/alone/tail", params={"partition": partition}) as response:
            stream = events_of(response)
            assert next(stream)[0] == "quiet"
            eventually(lambda: console.get("/api/overview"), lambda a: isinstance(a, dict) and a["offline"] >= 1)
            three.start_broker(2)
            is_down = False
            for event, _ in stream:
                if event == "records":
                    break
                three.produce("alone", [b"v"], partition=partition)
    finally:
        if is_down:
            three.start_broker(2)
        three.delete_topic("alone")

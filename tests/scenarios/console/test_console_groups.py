"""Groups of other clients: list, members, lag and its history, resets with a preview."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import aiokafka
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from barnabas.testing import Cluster, wait_until
from tests.scenarios.console.conftest import DEADLINE_S, Console, eventually
from tests.scenarios.console.test_console_messages import produce
from tests.support.streams_member import StreamsMember


def committed(cluster: Cluster, group: str, topic: str, offsets: dict[int, int]) -> None:
    """A group without members that has committed these."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in offsets.items()], asynchronous=False)
    consumer.close()


@contextmanager
def consuming(cluster: Cluster, group: str, topic: str, **settings: Any) -> Iterator[None]:
    """A consumer that polls and commits until the end, in a thread."""
    ended, assigned = threading.Event(), threading.Event()
    defaults = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, "client.id": "reader"}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group} | defaults | settings)

    def run() -> None:
        consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
        while not ended.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert assigned.wait(DEADLINE_S)
        yield
    finally:
        ended.set()
        thread.join(DEADLINE_S)


def test_list_shows_lag_state_and_members(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, prefix = topic(partitions=2), f"list-{uuid4()}"
    produce(cluster, name, [{"value": "v", "partition": n % 2} for n in range(10)])
    committed(cluster, f"{prefix}/empty", name, {0: 1, 1: 5})
    with consuming(cluster, f"{prefix}/active", name):
        answer = eventually(
            lambda: console.get("/api/groups", search=prefix),
            lambda a: (
                [(g["lag"], g["state"]) for g in a["groups"]] == [(0, "Stable"), (4, "Empty")]
                and a["groups"][0]["members"] == 1
            ),
        )
    assert [(g["group"], g["state"]) for g in answer["groups"]] == [
        (f"{prefix}/active", "Stable"),
        (f"{prefix}/empty", "Empty"),
    ]
    assert answer["total"] == 2 and answer["groups"][1]["topics"] == 1
    by_lag = console.get("/api/groups", search=prefix, sort="lag", descending=1)
    assert by_lag["groups"][0]["group"] == f"{prefix}/empty"
    assert console.get("/api/groups", search=prefix, state="empty")["total"] == 1


def test_group_with_a_slash_shows_members_and_lag_by_partition(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=2), f"a/b {uuid4()}"
    produce(cluster, name, [{"value": "v", "partition": 1} for _ in range(7)])
    path = "/api/groups/" + group.replace("/", "%2F").replace(" ", "%20")
    with consuming(cluster, group, name):
        answer = eventually(
            lambda: console.get(path),
            lambda a: isinstance(a, dict) and any(each["committed"] == 7 for each in a["partitions"]),
        )
        assert answer["state"] == "Stable" and answer["members"][0]["client"] == "reader"
        assert {p["partition"] for p in answer["members"][0]["partitions"]} == {0, 1}
    (second,) = [p for p in answer["partitions"] if p["partition"] == 1]
    assert (second["committed"], second["end"], second["lag"], second["client"]) == (7, 7, 0, "reader")
    assert console.get("/api/groups/not-there")[:2] == (404, "NOT_FOUND")


def test_lag_says_how_many_partitions_without_an_offset_it_leaves_out(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=3), f"half-{uuid4()}"
    produce(cluster, name, [{"value": "v", "partition": index} for index in (0, 1, 1)])
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([name])
    try:
        wait_until(lambda: consumer.poll(0.2) is None and len(consumer.assignment()) == 3, 60, what="the assignment")
        consumer.commit(offsets=[TopicPartition(name, 1, 0)], asynchronous=False)
        answer = eventually(
            lambda: console.get(f"/api/groups/{group}"),
            lambda a: isinstance(a, dict) and a["lag"] == 2 and a["members"],
        )
    finally:
        consumer.close()
    assert answer["lagLeavesOut"] == 1, "partition 0 has a record and no offset; partition 2 is empty"


def test_group_of_the_new_protocol_is_shown(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, group = topic(), f"new-{uuid4()}"
    produce(cluster, name, [{"value": "v"}])
    settings = {"group.protocol": "consumer"}
    with consuming(cluster, group, name, **settings):
        answer = eventually(lambda: console.get(f"/api/groups/{group}"), lambda a: isinstance(a, dict) and a["members"])
    assert answer["type"] == "Consumer" and answer["assignor"] == "uniform"


def test_share_group_is_shown_with_members_start_offsets_and_lag(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=1), f"share-{uuid4()}"
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])]
    ).values():
        future.result(DEADLINE_S)
    produce(cluster, name, [{"value": "v", "partition": 0} for _ in range(7)])
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "worker"})
    consumer.subscribe([name])
    read = 0
    while read < 7:
        read += sum(1 for each in consumer.poll(1.0) if each.error() is None)
    consumer.commit_sync(30.0)
    detail = eventually(lambda: console.get(f"/api/groups/{group}"), lambda a: isinstance(a, dict) and a["lag"] == 0)
    assert (detail["type"], detail["state"], detail["assignor"]) == ("Share", "Stable", "simple")
    assert [(each["client"], len(each["partitions"])) for each in detail["members"]] == [("worker", 1)]
    assert [(each["end"], each["lag"], each["client"]) for each in detail["partitions"]] == [(7, 0, "worker")]
    [row] = console.get("/api/groups", search=group)["groups"]
    assert (row["type"], row["members"], row["topics"], row["lag"]) == ("Share", 1, 1, 0)
    consumer.close()
    produce(cluster, name, [{"value": "v", "partition": 0} for _ in range(2)])
    answer = eventually(
        lambda: console.get("/api/groups", search=group, sort="lag", descending=1),
        lambda a: a["groups"] and (a["groups"][0]["lag"], a["groups"][0]["state"]) == (2, "Empty"),
    )
    assert answer["lagKnown"] == answer["lagOf"], "no group is asked for again and again"
    assert console.change("DELETE", f"/api/groups/{group}") == {"deleted": group}


def test_streams_group_is_shown_with_the_partitions_of_its_tasks(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    produce(cluster, name, [{"value": "v", "partition": 0} for _ in range(3)])
    member = StreamsMember(cluster.bootstrap, name)
    member.join()
    detail = eventually(lambda: console.get(f"/api/groups/{member.group}"), lambda a: isinstance(a, dict))
    assert (detail["type"], detail["state"], detail["protocol"]) == ("Streams", "Stable", "streams")
    assert [(each["client"], len(each["partitions"])) for each in detail["members"]] == [("counter", 2)]
    assert [(each["end"], each["client"]) for each in detail["partitions"]] == [(3, "counter"), (0, "counter")]
    [row] = console.get("/api/groups", search=member.group)["groups"]
    assert (row["type"], row["members"]) == ("Streams", 1)
    member.leave()
    assert console.change("DELETE", f"/api/groups/{member.group}") == {"deleted": member.group}


def test_aiokafka_group_is_shown_and_its_history_grows_while_it_is_watched(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(), f"aio-{uuid4()}"
    produce(cluster, name, [{"value": "v"}] * 3)

    async def read_one() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            name, bootstrap_servers=cluster.bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getone()
        await consumer.commit()
        await consumer.stop()

    asyncio.run(read_one())
    path = f"/api/groups/{group}"
    assert console.get(path)["lag"] == 2
    book = console.server.app.state.services.guard._own.cluster.lag
    asyncio.run_coroutine_threadsafe(book.sample(), console.loop).result(DEADLINE_S)
    produce(cluster, name, [{"value": "v"}])
    eventually(lambda: console.get(path), lambda a: a["lag"] == 3)
    asyncio.run_coroutine_threadsafe(book.sample(), console.loop).result(DEADLINE_S)
    # The sampler itself may have added more of the same in between.
    for lags in (
        console.get(path)["history"]["lag"],
        console.get(f"{path}/history", topic=name)["partitions"]["0"],
    ):
        known = [lag for lag in lags if lag >= 0]
        assert known == sorted(known) and set(known) == {2, 3}


def test_topic_knows_the_groups_that_read_it(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, group = topic(), f"of-{uuid4()}"
    produce(cluster, name, [{"value": "v"}] * 4)
    committed(cluster, group, name, {0: 1})
    row = {"group": group, "state": "Empty", "lag": 3, "partitions": 1}
    # The console's image of the cluster may be from before the topic: then the list has no such row yet.
    eventually(lambda: console.get(f"/api/topics/{name}/groups")["groups"], lambda groups: groups == [row])
    eventually(
        lambda: [each["lag"] for each in console.get("/api/topics", search=name)["topics"]], lambda lags: lags == [3]
    )


def test_topics_are_sorted_by_the_lag_of_their_groups(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    near, far, unread = topic(), topic(), topic()
    prefix = f"sorted-{uuid4()}"
    for name, behind in ((near, 1), (far, 3)):
        produce(cluster, name, [{"value": "v"}] * 3)
        committed(cluster, f"{prefix}-{name}", name, {0: 3 - behind})

    def order() -> list[str]:
        shown = console.get("/api/topics", sort="lag", descending=1, count=500)["topics"]
        return [each["name"] for each in shown if each["name"] in (near, far, unread)]

    eventually(order, lambda names: names == [far, near, unread])


def test_reset_does_what_its_preview_says(
    console: Console, reading_console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=2), f"reset-{uuid4()}"
    produce(cluster, name, [{"value": "v", "partition": 0, "timestamp": 1_700_000_000_000 + n} for n in range(10)])
    committed(cluster, group, name, {0: 6, 1: 0})
    path = f"/api/groups/{group}/reset"

    def targets(**query: Any) -> list[int]:
        return [row["offset"] for row in console.get(path, **query)["offsets"]]

    assert targets(to="latest") == [10, 0]
    assert targets(to="earliest") == [0, 0]
    assert targets(to="offset", value=4) == [4, 0]
    assert targets(to="shift", value=-100) == [0, 0]
    assert targets(to="time", value=1_700_000_000_003) == [3, 0]
    assert targets(to="latest", topic=name, partitions="0") == [10]
    preview = reading_console.get(path, to="offset", value=4, topic=name)
    assert (preview["lagBefore"], preview["lagAfter"], preview["isActive"]) == (4, 6, False)
    assert [row["change"] for row in preview["offsets"]] == [-2, 0]
    body = {"offsets": preview["offsets"]}
    assert reading_console.change("POST", path, body)[:2] == (403, "READ_ONLY")
    assert console.change("POST", path, body) == {"reset": 2}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    assert [tp.offset for tp in consumer.committed([TopicPartition(name, 0)], timeout=DEADLINE_S)] == [4]
    consumer.close()


def test_group_with_members_cannot_be_reset(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, group = topic(), f"busy-{uuid4()}"
    produce(cluster, name, [{"value": "v"}])
    with consuming(cluster, group, name):
        eventually(
            lambda: console.get(f"/api/groups/{group}"), lambda a: isinstance(a, dict) and a["state"] == "Stable"
        )
        offsets = {"offsets": [{"topic": name, "partition": 0, "offset": 0}]}
        status, code, message = console.change("POST", f"/api/groups/{group}/reset", offsets)
        assert (status, code) == (409, "NON_EMPTY_GROUP") and "stop its consumers" in message
        assert console.get(f"/api/groups/{group}/reset", to="earliest", topic=name)["isActive"] is True
        assert console.change("DELETE", f"/api/groups/{group}")[:2] == (409, "NON_EMPTY_GROUP")


def test_group_and_its_offsets_can_be_deleted(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    first, second, group = topic(), topic(), f"gone-{uuid4()}"
    committed(cluster, group, first, {0: 0})
    committed(cluster, group, second, {0: 0})
    assert console.change("DELETE", f"/api/groups/{group}/topics/{first}") == {"deleted": 1}
    assert {p["topic"] for p in console.get(f"/api/groups/{group}")["partitions"]} == {second}
    assert console.change("DELETE", f"/api/groups/{group}") == {"deleted": group}
    assert console.get(f"/api/groups/{group}")[:2] == (404, "NOT_FOUND")


def test_open_transaction_is_named_as_what_holds_a_group_back(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(), f"held-{uuid4()}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"t-{uuid4()}"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(name, value="not yet")
    assert producer.flush(DEADLINE_S) == 0
    with consuming(cluster, group, name, **{"isolation.level": "read_committed"}):
        eventually(lambda: console.get(f"/api/groups/{group}"), lambda a: isinstance(a, dict) and a["members"])
    committed(cluster, group, name, {0: 0})
    answer = eventually(
        lambda: console.get(f"/api/groups/{group}"),
        lambda a: isinstance(a, dict) and any(cause["kind"] == "open-transaction" for cause in a["causes"]),
    )
    (cause,) = [each for each in answer["causes"] if each["kind"] == "open-transaction"]
    assert "offset 0" in cause["sentence"] and "producer " in cause["sentence"]
    producer.abort_transaction(DEADLINE_S)


def test_group_that_keeps_up_with_its_producers_is_not_held_back(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, group = topic(), f"moving-{uuid4()}"
    kept = console.server.app.state.services.guard._own.cluster._kept
    for number in range(1, 4):
        produce(cluster, name, [{"value": "v"}] * 5)
        committed(cluster, group, name, {0: 5 * number - 1})
        # The last stable offset that the console saw a moment ago: by now the group has read beyond it.
        for key, answer in kept.items():
            if isinstance(key, tuple) and key[0] != "group" and group in key:
                answer.at_s += DEADLINE_S
        answer = eventually(
            lambda: console.get(f"/api/groups/{group}"), lambda a: isinstance(a, dict) and a["lag"] == 1
        )
        assert [cause["kind"] for cause in answer["causes"]] == ["no-members"]


def test_lag_is_watched(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    name, group = topic(), f"live-{uuid4()}"
    committed(cluster, group, name, {0: 0})
    path = f"/api/groups/{group}"
    with console.watching(path) as events:
        assert json.loads(next(events)[1])["lag"] == 0
        produce(cluster, name, [{"value": "v"}] * 5)
        for _, data in events:
            if json.loads(data)["lag"] == 5:
                break

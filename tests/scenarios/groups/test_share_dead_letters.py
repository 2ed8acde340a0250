"""Dead-letter topics of share groups (KIP-1191)."""

from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.broker.share import dead_letters
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.testing import Broker
from tests.support.share_member import REJECT, RELEASE, ShareMember, offer
from tests.support.waiting import eventually

CONFIG = {
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.delivery.count.limit": "2",
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
}
ALLOWED = {"errors.deadletterqueue.group.enable": "true"}


def composed(kafka: Any, broker_id: int = 1) -> Any:
    return kafka._machinery.members[broker_id].broker


async def configure(kafka: Any, settings: Mapping[str, str], group_id: str = "g") -> None:
    for member in kafka._machinery.members.values():
        member.broker.dynamic.set_group(group_id, settings)


async def letters(kafka: Any, topic: str, count: int) -> list[tuple[Any, Any, dict[str, bytes]]]:
    """Return the dead letters once there are so many: key, value and headers without their common prefix."""
    found: list[Any] = []
    while len(found) < count:
        found = await kafka.records(topic)
    return [
        (each.key, each.value, {name.removeprefix("__dlq.errors."): value for name, value in each.headers})
        for each in sorted(found, key=lambda each: int(dict(each.headers)["__dlq.errors.offset"]))
    ]


async def all_given_up(kafka: Any, start: int) -> None:
    await eventually(
        lambda: [share.machine.start for share in composed(kafka).share.partitions if share.machine] == [start]
    )


async def test_rejected_and_undeliverable_records_are_copied_with_kafkas_headers() -> None:
    async with Broker(config=CONFIG) as kafka:
        await kafka.create_topic("orders")
        await kafka.create_topic("dlq.orders", config=ALLOWED)
        await configure(
            kafka,
            {
                "errors.deadletterqueue.topic.name": "dlq.orders",
                "errors.deadletterqueue.copy.record.enable": "true",
            },
        )
        await kafka.produce("orders", [("k0", "v0"), ("k1", "v1"), ("k2", None)])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000)
            assert await one.settle(got[:1], REJECT) == [0]
            assert await one.settle(got[1:], RELEASE) == [0]
            again = await one.fetch(max_wait_ms=5_000)
            assert await one.settle(again[:1], RELEASE) == [0]
            # The lock of the last one times out.
            found = await letters(kafka, "dlq.orders", 3)
            await all_given_up(kafka, 3)
        assert [(key, value) for key, value, _ in found] == [(b"k0", b"v0"), (b"k1", b"v1"), (b"k2", None)]
        common = {"topic": b"orders", "partition": b"0", "group": b"g"}
        rejected, too_often = b"Offset rejected by client.", b"Offset delivery count exceeded the threshold."
        assert [headers for _, _, headers in found] == [
            common | {"offset": b"0", "delivery.count": b"1", "message": rejected},
            common | {"offset": b"1", "delivery.count": b"2", "message": too_often},
            common | {"offset": b"2", "delivery.count": b"2", "message": too_often},
        ]


async def test_topic_is_created_if_that_is_allowed_and_gets_headers_alone_by_default() -> None:
    config = CONFIG | {"errors.deadletterqueue.auto.create.topics.enable": "true", "num.partitions": "2"}
    async with Broker(brokers=2, config=config | {"share.coordinator.state.topic.replication.factor": "1"}) as kafka:
        await kafka.create_topic("orders", replication_factor=1)
        await configure(kafka, {"errors.deadletterqueue.topic.name": "dlq.new"})
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        leader = await kafka.leader_of("orders")
        async with ShareMember(kafka.bootstrap, "one", broker_id=leader) as one:
            assert await one.settle(await one.fetch([place], max_wait_ms=5_000), REJECT) == [0]
            await eventually(lambda: composed(kafka, leader).context.metadata.topic("dlq.new") is not None)
            [(key, value, headers)] = await letters(kafka, "dlq.new", 1)
        assert (key, value, headers["offset"]) == (None, None, b"0")
        assert len(await kafka.partitions("dlq.new")) == 2


async def test_records_are_given_up_without_a_copy_if_the_topic_must_not_be_used() -> None:
    async with Broker(config=CONFIG) as kafka:
        await kafka.create_topic("orders")
        await kafka.create_topic("dlq.closed")
        await kafka.create_topic("payments", config=ALLOWED)
        await kafka.produce("orders", ["a"] * 4)
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000)
            for number, (topic, why) in enumerate(
                (
                    ("dlq.closed", "set errors.deadletterqueue.group.enable=true on the topic"),
                    ("payments", "its name must begin with 'dlq.'"),
                    ("__payments", "cannot begin with __"),
                    ("dlq.missing", "the topic does not exist"),
                )
            ):
                await configure(kafka, {"errors.deadletterqueue.topic.name": topic})
                assert await one.settle(got[number : number + 1], REJECT) == [0]
                await all_given_up(kafka, number + 1)
                assert f"dead-letter topic '{topic}': " in kafka.log(1) and why in kafka.log(1)
        assert await kafka.records("dlq.closed") == await kafka.records("payments") == []


async def test_dead_letter_is_written_after_the_zookeeper_session_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the topic cannot be read before the broker has a session again."""
    monkeypatch.setattr(dead_letters, "_BACKOFF_S", 0.01)
    async with Broker(config=CONFIG) as kafka:
        await kafka.create_topic("orders")
        await kafka.create_topic("dlq.orders", config=ALLOWED)
        await configure(kafka, {"errors.deadletterqueue.topic.name": "dlq.orders"})
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        store = composed(kafka).settings.store
        read_new = store.read_new

        async def expired(*args: Any) -> Any:
            store.read_new = read_new
            raise SessionExpired("session 0x1 has expired")

        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000)
            store.read_new = expired
            assert await one.settle(got, REJECT) == [0]
            await all_given_up(kafka, 1)
        assert [dict(each.headers)["__dlq.errors.offset"] for each in await kafka.records("dlq.orders")] == [b"0"]


async def test_new_leader_copies_what_the_former_one_could_not() -> None:
    async with Broker(brokers=3, config=CONFIG) as kafka:
        await kafka.create_topic("orders", replication_factor=3)
        await kafka.create_topic("dlq.orders", replication_factor=3, config=ALLOWED)
        await configure(kafka, {"errors.deadletterqueue.topic.name": "dlq.orders"})
        await kafka.produce("orders", ["a", "b"])
        [place] = await offer(kafka, "orders", start=0)
        leader = await kafka.leader_of("orders")
        async with ShareMember(kafka.bootstrap, "one", broker_id=leader) as one:
            # The dead letters of the former leader are never written.
            share = composed(kafka, leader).share.partitions
            got = await one.fetch([place], max_wait_ms=5_000)
            [partition] = list(share)
            partition._is_burying = True
            assert await one.settle(got, REJECT) == [0]
        await kafka.kill(leader)
        while (heir := await kafka.leader_of("orders")) == leader:
            pass
        async with ShareMember(kafka.bootstrap, "two", broker_id=heir) as two:
            assert await two.fetch([place], max_wait_ms=1_000) == []
            found = await letters(kafka, "dlq.orders", 2)
        assert [headers["offset"] for _, _, headers in found] == [b"0", b"1"]


async def test_many_dead_letters_go_in_batches_that_the_topic_takes() -> None:
    async with Broker(config=CONFIG | {"group.share.record.lock.duration.ms": "60000"}) as kafka:
        await kafka.create_topic("orders")
        await kafka.create_topic("dlq.orders", config=ALLOWED | {"max.message.bytes": "2000"})
        settings = {
            "errors.deadletterqueue.topic.name": "dlq.orders",
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        await configure(kafka, settings)
        await kafka.produce("orders", [f"{number:0300}" for number in range(100)])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = []
            while len(got) < 100:
                got += await one.fetch([place], max_wait_ms=5_000)
            assert await one.settle(got, REJECT) == [0]
            found = await letters(kafka, "dlq.orders", 100)
            await all_given_up(kafka, 100)
        assert [value for _, value, _ in found] == [b"%0300d" % number for number in range(100)]


async def test_dead_letters_are_sent_again_when_the_leader_refuses_them() -> None:
    async with Broker(config=CONFIG) as kafka:
        await kafka.create_topic("orders")
        await kafka.create_topic("dlq.orders", config=ALLOWED)
        await configure(kafka, {"errors.deadletterqueue.topic.name": "dlq.orders"})
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000)
            await kafka.fail_api(1, "Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
            assert await one.settle(got, REJECT) == [0]
            assert len(await letters(kafka, "dlq.orders", 1)) == 1
            await all_given_up(kafka, 1)

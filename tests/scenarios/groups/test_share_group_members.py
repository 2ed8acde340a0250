"""Share groups with librdkafka's share consumer, while coordinators fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Event, Thread
from typing import Any

from confluent_kafka import ShareConsumer

from barnabas.broker.compose import Broker as ComposedBroker
from barnabas.broker.groups.share_group import ShareGroup
from barnabas.testing import Broker
from tests.support.waiting import eventually

FAST_SHARE = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "4000",
    "offsets.topic.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
}


@asynccontextmanager
async def member(bootstrap: str, *topics: str) -> AsyncIterator[None]:
    """A share consumer that polls in a thread of its own."""
    stop = Event()

    def poll() -> None:
        consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "g"})
        consumer.subscribe(list(topics))
        while not stop.is_set():
            consumer.poll(0.2)
        consumer.close()

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive(), "the share consumer does not close"


def share_group(kafka: Any) -> ShareGroup | None:
    """Return the group as its present coordinator has it."""
    for running in kafka._machinery.members.values():
        broker = running.broker
        if isinstance(broker, ComposedBroker):
            for machine in broker.groups.coordinator.machines.values():
                found = machine.groups.get("g")
                if isinstance(found, ShareGroup):
                    return found
    return None


def numbers(kafka: Any) -> list[list[int]]:
    """Return the partitions of each member."""
    group = share_group(kafka)
    return (
        []
        if group is None
        else sorted(sorted(n for each in m.assigned.values() for n in each) for m in group.members.values())
    )


async def test_share_consumers_join_share_partitions_and_leave() -> None:
    async with Broker(config=FAST_SHARE) as kafka:
        await kafka.create_topic("orders", partitions=3)
        async with AsyncExitStack() as members:
            await members.enter_async_context(member(kafka.bootstrap, "orders"))
            await eventually(lambda: numbers(kafka) == [[0, 1, 2]], what="one member with all partitions")
            for _ in range(5):
                await members.enter_async_context(member(kafka.bootstrap, "orders"))
            await eventually(lambda: numbers(kafka) == [[0], [0], [1], [1], [2], [2]], what="two members for each")
        await eventually(lambda: numbers(kafka) == [], what="members that have left")
        group = share_group(kafka)
        assert group is not None
        assert group.state_name() == "Empty"


async def test_group_goes_on_when_its_coordinator_fails() -> None:
    async with Broker(brokers=3, config=FAST_SHARE) as kafka:
        await kafka.create_topic("orders", partitions=4)
        async with member(kafka.bootstrap, "orders"), member(kafka.bootstrap, "orders"):
            await eventually(lambda: list(map(len, numbers(kafka))) == [2, 2], what="two members")
            before = share_group(kafka)
            assert before is not None
            ids = set(before.members)
            victim = _coordinator(kafka)
            await kafka.kill(victim)
            await eventually(lambda: _coordinator(kafka) not in (None, victim), what="another coordinator")
            group = share_group(kafka)
            assert group is not None
            assert set(group.members) == ids
            epoch = group.group_epoch
            await asyncio.sleep(2)
            group = share_group(kafka)
            assert group is not None
            assert (set(group.members), group.group_epoch) == (ids, epoch), (
                "the members stay, and keep their partitions"
            )


def _coordinator(kafka: Any) -> int | None:
    for broker_id, running in kafka._machinery.members.items():
        broker = running.broker
        if isinstance(broker, ComposedBroker):
            for machine in broker.groups.coordinator.machines.values():
                if "g" in machine.groups:
                    return int(broker_id)
    return None

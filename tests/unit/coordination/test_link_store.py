"""What leaders of mirror partitions note in ZooKeeper."""

import asyncio

from zookeeper_fixture import run, session, zookeeper

from barnabas.coordination import paths
from barnabas.coordination.znodes_link import LinkSpec, MirrorPartition, MirrorTopic
from barnabas.core.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.link.store import LinkStore

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)


def noted(leader_epoch: int, source_epoch: int, *, final_offset: int | None = None) -> MirrorPartition:
    return MirrorPartition(
        leader_epoch=LeaderEpoch(leader_epoch),
        epochs=((LeaderEpoch(source_epoch), Offset(0)),),
        final_offset=None if final_offset is None else Offset(final_offset),
        is_done=final_offset is not None,
    )


async def store_with_topics(opened: object) -> LinkStore:
    store = LinkStore(opened)  # type: ignore[arg-type]
    await store.prepare()
    await store.create("east", LinkSpec(topics=".*", configs={}))
    for tp in (ORDERS, PAYMENTS):
        await store.create_topic("east", tp.topic, MirrorTopic())
    return store


def test_a_former_leader_that_wakes_late_writes_over_nobody_and_keeps_what_it_still_leads() -> None:
    async def scenario() -> None:
        async with zookeeper() as ensemble, session(ensemble) as opened:
            store = await store_with_topics(opened)
            former, later = noted(3, 7), noted(4, 7, final_offset=100)
            assert await store.write_partitions("east", {ORDERS: former, PAYMENTS: former}) == set()
            assert await store.write_partitions("east", {ORDERS: later}) == set()

            late = noted(3, 8)
            assert await store.write_partitions("east", {ORDERS: late, PAYMENTS: late}) == {ORDERS}

            assert await store.partition("east", ORDERS) == later
            assert await store.partition("east", PAYMENTS) == late

    run(scenario())


def test_two_leaders_that_write_at_once_leave_the_later_ones_word() -> None:
    async def scenario() -> None:
        async with zookeeper() as ensemble, session(ensemble) as one, session(ensemble) as other:
            former = await store_with_topics(one)
            later = LinkStore(other)
            for _ in range(20):
                fenced, none = await asyncio.gather(
                    former.write_partitions("east", {ORDERS: noted(3, 7)}),
                    later.write_partitions("east", {ORDERS: noted(4, 9)}),
                )
                assert none == set()
                assert fenced in (set(), {ORDERS})
                assert await later.partition("east", ORDERS) == noted(4, 9)
                await one.delete(paths.link_partition("east", ORDERS))

    run(scenario())


def test_what_cannot_be_read_is_written_over() -> None:
    async def scenario() -> None:
        async with zookeeper() as ensemble, session(ensemble) as opened:
            store = await store_with_topics(opened)
            await opened.create(paths.link_partition("east", ORDERS), b"{", make_path=True)
            assert await store.write_partitions("east", {ORDERS: noted(1, 1)}) == set()
            assert await store.partition("east", ORDERS) == noted(1, 1)

    run(scenario())

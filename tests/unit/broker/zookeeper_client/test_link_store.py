"""What leaders of mirror partitions note in ZooKeeper."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from barnabas.base.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.features.link.store import LinkStore
from barnabas.broker.security.acl import Entry, ResourcePattern
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import NoNode
from barnabas.broker.zookeeper_client.znodes_link import LinkChange, LinkSpec, MirrorPartition, MirrorState, MirrorTopic
from tests.unit.broker.zookeeper_client.zookeeper_fixture import LosesAnswers, session, zookeeper

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


async def test_without_links_list_and_delete_find_nothing(zk: ZooKeeperSession) -> None:
    """Also if a client has created the parent of notifications, or deleted that of links: no broker ends because of it."""

    store = LinkStore(zk)
    assert not await store.delete("east")
    await zk.ensure_path(paths.LINK_CHANGES)
    assert await store.names() == []
    assert not await store.delete("east")


async def test_former_leader_that_wakes_late_overwrites_only_what_it_still_leads(zk: ZooKeeperSession) -> None:
    store = await store_with_topics(zk)
    former, later = noted(3, 7), noted(4, 7, final_offset=100)
    assert await store.write_partitions("east", {ORDERS: former, PAYMENTS: former}) == set()
    assert await store.write_partitions("east", {ORDERS: later}) == set()

    late = noted(3, 8)
    assert await store.write_partitions("east", {ORDERS: late, PAYMENTS: late}) == {ORDERS}

    assert await store.partition("east", ORDERS) == later
    assert await store.partition("east", PAYMENTS) == late


async def test_two_leaders_that_write_at_once_leave_the_later_ones_word() -> None:
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


async def test_unreadable_znode_is_overwritten(zk: ZooKeeperSession) -> None:
    store = await store_with_topics(zk)
    await zk.create(paths.link_partition("east", ORDERS), b"{", make_path=True)
    assert await store.write_partitions("east", {ORDERS: noted(1, 1)}) == set()
    assert await store.partition("east", ORDERS) == noted(1, 1)


def stopped(mirror: MirrorTopic) -> MirrorTopic | None:
    return None if mirror.state is MirrorState.STOPPED else replace(mirror, state=MirrorState.STOPPED)


async def take_changes(opened: ZooKeeperSession) -> list[LinkChange]:
    names = sorted(await opened.children(paths.LINK_CHANGES))
    found = [LinkChange.decode("", (await opened.get(f"{paths.LINK_CHANGES}/{name}"))[0] or b"") for name in names]
    for name in names:
        await opened.delete(f"{paths.LINK_CHANGES}/{name}")
    return found


async def test_others_hear_of_what_was_done_though_the_answer_to_it_was_lost(zk: ZooKeeperSession) -> None:
    """They would not mirror a new topic, or go on with one that has ended, until their next session."""

    await LinkStore(zk).prepare()
    store = LinkStore(cast(ZooKeeperSession, LosesAnswers(zk)))
    await store.create("east", LinkSpec(topics=".*", configs={}))
    await store.create_topic("east", "orders", MirrorTopic())
    changed = await store.change_topic("east", "orders", stopped)
    assert changed is not None and changed.state is MirrorState.STOPPED
    of_topic = LinkChange("east", "orders")
    assert await take_changes(zk) == [LinkChange("east"), of_topic, of_topic]
    await store.delete("east")
    assert await take_changes(zk) == [LinkChange("east")]
    assert await store.spec("east") is None


async def test_repeated_write_of_a_dead_broker_sends_its_notification(zk: ZooKeeperSession) -> None:
    store = await store_with_topics(zk)
    promoting = MirrorTopic(state=MirrorState.PROMOTING)
    await zk.set(paths.link_topic("east", "orders"), promoting.encode())
    await take_changes(zk)
    assert await store.change_topic("east", "orders", lambda _: promoting) == promoting
    await store.create_topic("east", "orders", MirrorTopic())
    assert await store.topic("east", "orders") == promoting
    assert await take_changes(zk) == [LinkChange("east", "orders")] * 2
    # A change that changes nothing sends no notification.
    assert await store.change_topic("east", "orders", lambda _: None) == promoting
    assert await take_changes(zk) == []


async def test_acl_entries_that_a_link_added_are_recorded_and_deleted_with_the_link(zk: ZooKeeperSession) -> None:
    store = await store_with_topics(zk)
    assert await store.added_acls("east") == {}
    entries = frozenset(
        Entry("User:ann", "*", operation, Permission.ALLOW) for operation in (AclOperation.READ, AclOperation.WRITE)
    )
    patterns = [
        ResourcePattern(kind, name, pattern_type)
        for kind in (AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.TRANSACTIONAL_ID)
        for name in ("orders", "a-b/c d", "*")
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    for pattern in patterns:
        await store.write_added_acls("east", pattern, frozenset(list(entries)[:1]))
        await store.write_added_acls("east", pattern, entries)
    assert await store.added_acls("east") == dict.fromkeys(patterns, entries)
    await store.write_added_acls("east", patterns[0], frozenset())
    await store.write_added_acls("east", patterns[0], frozenset())
    await zk.create(f"{paths.link_acls('east')}/nonsense", b"{}")
    await zk.set(paths.link_acl("east", "TOPIC", "PREFIXED", "orders"), b"no json")
    assert await store.added_acls("east") == dict.fromkeys(patterns[2:], entries)
    assert await store.delete("east")
    assert await zk.exists(paths.link("east")) is None
    with pytest.raises(NoNode):
        await store.write_added_acls("east", patterns[0], entries)

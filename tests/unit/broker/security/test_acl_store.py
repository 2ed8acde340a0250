"""ACLs in ZooKeeper, with a real server: what one broker writes, another one obeys."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security.acl import ALL, AclAuthorizer, Entry, Filter, ResourcePattern
from barnabas.broker.security.acl_store import AclStore, AclUnreadable, Removed, path_of
from barnabas.broker.security.principal import Principal
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from tests.support.waiting import eventually
from tests.unit.broker.zookeeper_client.zookeeper_fixture import (
    Ensemble,
    LosesAnswers,
    ReadsBehind,
    session,
    states_of,
    zookeeper,
)

ALICE = Principal("User", "alice")
READ_ALLOWED = Entry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
WRITE_DENIED = Entry("User:alice", "10.0.0.1", AclOperation.WRITE, Permission.DENY)
TOPIC = ResourcePattern(AclResourceType.TOPIC, "t")
PREFIX = ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "tx", PatternType.PREFIXED)


class ReadableAuthorizer(AclAuthorizer):
    def reads(self, topic: str = "t") -> bool:
        return self.allows(ALICE, "h", AclOperation.READ, AclResourceType.TOPIC, topic)


@asynccontextmanager
async def broker(ensemble: Ensemble, opened: ZooKeeperSession) -> AsyncIterator[tuple[ReadableAuthorizer, AclStore]]:
    authorizer = ReadableAuthorizer()
    store = AclStore(opened, authorizer, ensemble.clock)
    await store.start()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        try:
            yield authorizer, store
        finally:
            running.cancel()


async def test_entries_are_stored_as_kafka_stores_them() -> None:
    async with zookeeper() as ensemble, session(ensemble) as opened, broker(ensemble, opened) as (_, store):
        await store.add(TOPIC, [READ_ALLOWED, WRITE_DENIED])
        await store.add(PREFIX, [Entry("User:*", "*", ALL, Permission.ALLOW)])
        data, _ = await opened.get("/kafka-acl/Topic/t")
        stored = json.loads(data or b"")
        assert stored["version"] == 1
        assert sorted(stored["acls"], key=lambda entry: str(entry["operation"])) == [
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
            {"principal": "User:alice", "permissionType": "Deny", "operation": "Write", "host": "10.0.0.1"},
        ]
        data, _ = await opened.get("/kafka-acl-extended/prefixed/TransactionalId/tx")
        assert json.loads(data or b"")["acls"][0]["operation"] == "All"
        [literal_change] = await opened.children(paths.ACL_LITERAL_CHANGES)
        data, _ = await opened.get(f"{paths.ACL_LITERAL_CHANGES}/{literal_change}")
        assert data == b"TOPIC:t"
        assert len(await opened.children(paths.ACL_EXTENDED_CHANGES)) == 1


async def test_entry_added_at_one_broker_applies_at_another() -> None:
    async with (
        zookeeper() as ensemble,
        session(ensemble) as one,
        session(ensemble) as two,
        broker(ensemble, one) as (_, store),
        broker(ensemble, two) as (other, _other_store),
    ):
        await store.add(TOPIC, [READ_ALLOWED])
        await eventually(lambda: other.reads())
        removed = await store.remove([Filter(principal="User:alice")])
        assert removed == [Removed([(TOPIC, READ_ALLOWED)], [])]
        await eventually(lambda: not other.reads())
        assert await one.exists("/kafka-acl/Topic/t") is None


async def test_starting_broker_reads_the_stored_acls(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    async with broker(ensemble, zk) as (_, store):
        await store.add(TOPIC, [READ_ALLOWED])
        await store.add(PREFIX, [Entry("User:*", "*", AclOperation.WRITE, Permission.ALLOW)])
    async with broker(ensemble, zk) as (fresh, _):
        assert fresh.reads()
        assert fresh.allows(ALICE, "h", AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, "tx-7")


async def test_two_brokers_that_change_one_resource_lose_nothing() -> None:
    async with (
        zookeeper() as ensemble,
        session(ensemble) as one,
        session(ensemble) as two,
        broker(ensemble, one) as (_, first),
        broker(ensemble, two) as (_, second),
    ):
        users = [Entry(f"User:u{number}", "*", AclOperation.READ, Permission.ALLOW) for number in range(6)]
        await asyncio.gather(
            *(store.add(TOPIC, [user]) for store, user in zip([first, second] * 3, users, strict=True))
        )
        async with session(ensemble) as three, broker(ensemble, three) as (fresh, _):
            assert fresh.entries(TOPIC) == frozenset(users)


async def test_change_made_while_the_session_was_gone_is_found() -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, broker(ensemble, one) as (known, store):
        await store.add(TOPIC, [READ_ALLOWED])
        assert known.reads()
        states = states_of(one)
        ensemble.expire_sessions()
        async with session(ensemble) as two:
            # No notification: as if its quarter of an hour were over.
            await two.delete("/kafka-acl/Topic/t")
        await eventually(lambda: SessionState.RENEWED in states)
        await eventually(lambda: not known.reads())


async def test_unreadable_change_leaves_the_known_entries_in_force() -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, broker(ensemble, one) as (known, store):
        await store.add(TOPIC, [READ_ALLOWED])
        await one.set("/kafka-acl/Topic/t", b"no json")
        for data in (b"TOPIC:t", b"nonsense", b"PLANET:t"):
            await one.create(paths.acl_change(prefixed=False), data, sequence=True)
        await store.add(PREFIX, [READ_ALLOWED])
        other = ResourcePattern(AclResourceType.TOPIC, "later")
        async with session(ensemble) as two, session(ensemble):
            authorizer = AclAuthorizer()
            writer = AclStore(two, authorizer, ensemble.clock)
            await writer.add(other, [READ_ALLOWED])
            await eventually(lambda: known.reads("later"))
        assert known.reads()


async def test_unreadable_list_denies_everything(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    """Kafka takes it for empty. With `allow.everyone.if.no.acl.found` that lets everybody in."""

    await zk.create("/kafka-acl/Topic/t", b"no json", make_path=True)
    authorizer = AclAuthorizer(allow_if_no_acl=True)
    store = AclStore(zk, authorizer, ensemble.clock)
    await store.start()
    assert authorizer.allows(ALICE, "h", AclOperation.READ, AclResourceType.TOPIC, "other")
    assert not authorizer.allows(ALICE, "h", AclOperation.READ, AclResourceType.TOPIC, "t")
    with pytest.raises(AclUnreadable):
        await store.add(TOPIC, [READ_ALLOWED])
    # One list that cannot be read does not keep the others from being changed.
    await store.add(ResourcePattern(AclResourceType.TOPIC, "u"), [READ_ALLOWED])
    everything, other = await store.remove([Filter(), Filter(name="u")])
    assert [pattern.name for pattern, _ in everything.entries] == ["u"]
    assert [type(failure) for failure in everything.failures] == [AclUnreadable], "it is not said to be done"
    assert [pattern.name for pattern, _ in other.entries] == ["u"] and not other.failures


async def test_entry_that_two_filters_cover_is_reported_for_both_and_removed_once() -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, broker(ensemble, one) as (known, store):
        await store.add(TOPIC, [READ_ALLOWED, WRITE_DENIED])
        removed = await store.remove([Filter(operation=AclOperation.READ), Filter(name="t"), Filter(name="absent")])
        assert removed[0].entries == [(TOPIC, READ_ALLOWED)]
        assert {entry for _, entry in removed[1].entries} == {READ_ALLOWED, WRITE_DENIED}
        assert removed[2].entries == []
        assert not any(each.failures for each in removed)
        assert not list(known.patterns())


@pytest.mark.parametrize("pattern", [TOPIC, PREFIX])
async def test_broker_removes_entries_by_name_before_it_got_their_notification(pattern: ResourcePattern) -> None:
    """An administrator grants at one broker and revokes at another, a moment later."""

    async with zookeeper() as ensemble, session(ensemble) as one, session(ensemble) as two:
        deaf = AclAuthorizer()
        other = AclStore(two, deaf, ensemble.clock)
        await other.start()  # it does not run, so that it hears of nothing
        async with broker(ensemble, one) as (known, store):
            await store.add(pattern, [READ_ALLOWED, WRITE_DENIED])
            assert not list(deaf.patterns())
            exact = Filter(resource_type=pattern.resource_type, name=pattern.name, pattern_type=pattern.pattern_type)
            [removed] = await other.remove([replace(exact, operation=AclOperation.READ)])
            assert removed.entries == [(pattern, READ_ALLOWED)]
            await eventually(lambda: known.entries(pattern) == {WRITE_DENIED})
            [removed] = await other.remove([exact])
            assert removed.entries == [(pattern, WRITE_DENIED)]


@pytest.mark.parametrize("name", ["absent", "a/b", "..", "a\x01b", ""])
async def test_name_that_no_resource_has_removes_nothing(name: str) -> None:
    async with zookeeper() as ensemble, session(ensemble) as one, broker(ensemble, one) as (known, store):
        await store.add(TOPIC, [READ_ALLOWED])
        wanted = Filter(resource_type=AclResourceType.TOPIC, name=name, pattern_type=PatternType.LITERAL)
        assert await store.remove([wanted]) == [Removed([], [])]
        assert list(known.patterns()) == [TOPIC]


async def test_brokers_obey_a_change_whose_answer_was_lost() -> None:
    """Without it, a client that lost its right could continue at all brokers but one."""

    async with (
        zookeeper() as ensemble,
        session(ensemble) as opened,
        session(ensemble) as other,
        broker(ensemble, cast(ZooKeeperSession, LosesAnswers(opened))) as (_, store),
        broker(ensemble, other) as (obeying, _),
    ):
        await store.add(TOPIC, [READ_ALLOWED])
        await eventually(lambda: obeying.reads())
        await store.add(TOPIC, [WRITE_DENIED])
        [removed] = await store.remove([Filter()])
        assert set(removed.entries) == {(TOPIC, READ_ALLOWED), (TOPIC, WRITE_DENIED)}
        await eventually(lambda: not obeying.reads())


async def test_entry_that_a_server_of_zookeeper_has_not_heard_of_yet_is_removed(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """A client that added it at another broker, and removed it at this one, got success, but the entry stayed."""

    behind = ReadsBehind(zk)
    await behind.fall_behind()
    async with broker(ensemble, zk) as (_, other):
        await other.add(TOPIC, [READ_ALLOWED])
        store = AclStore(cast(ZooKeeperSession, behind), ReadableAuthorizer(), ensemble.clock)
        exact = Filter(TOPIC.resource_type, TOPIC.name, TOPIC.pattern_type)
        [removed] = await store.remove([exact])
        assert removed.entries == [(TOPIC, READ_ALLOWED)]
        assert (await zk.exists(path_of(TOPIC))) is None


async def test_entry_that_was_removed_is_added_again_where_a_server_of_zookeeper_still_has_it(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    behind = ReadsBehind(zk)
    async with broker(ensemble, zk) as (_, other):
        await other.add(TOPIC, [READ_ALLOWED])
        await behind.fall_behind(path_of(TOPIC))
        await other.remove([Filter(TOPIC.resource_type, TOPIC.name, TOPIC.pattern_type)])
        store = AclStore(cast(ZooKeeperSession, behind), ReadableAuthorizer(), ensemble.clock)
        await store.add(TOPIC, [READ_ALLOWED])
        assert await zk.exists(path_of(TOPIC)) is not None

"""A fetcher that reads ahead: it sends the next request before it appends an answer. A link does so, as its fetches acknowledge
nothing.
"""

import asyncio

import pytest

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.replication.fetch_steps import EpochAnswer, FetchedPartition
from barnabas.broker.replication.leader_endpoint import FetcherSettings
from barnabas.broker.storage.epoch_cache import EpochEnd
from tests.unit.broker.replication.fetch_fakes import FakeReplica, records
from tests.unit.broker.replication.test_replica_fetcher import A, B, ScriptedLeader, add, managed, turns_until

SETTINGS = FetcherSettings(broker_id=-1, replica_fetch_backoff_ms=30, replica_fetch_wait_max_ms=10_000)


class Mirror(FakeReplica):
    """A mirror that records its appends, together with the requests to its leader."""

    def __init__(self, *epochs, leader):
        super().__init__(*epochs)
        self.leader = leader
        self.plans_at_append = []

    def append_follower(self, data, leader_high_watermark, leader_log_start):
        self.plans_at_append.append(self.leader.asked)
        super().append_follower(data, leader_high_watermark, leader_log_start)


class Source(ScriptedLeader):
    def __init__(self):
        super().__init__(truncates_on_fetch=False)
        self.asked = 0
        self.ends = {A: EpochAnswer(0, EpochEnd(5, 1)), B: EpochAnswer(0, EpochEnd(5, 1))}

    async def fetch(self, plan, *, max_wait_ms):
        self.asked += 1
        return await super().fetch(plan, max_wait_ms=max_wait_ms)

    async def offset_asked(self, partition=A):
        return (await self.plan()).to_send[partition].fetch_offset


def reads_ahead(replica):
    """Return the fetch offset of the only partition."""
    return managed_by(lambda data: replica.log_end + len(data) // 4)


def managed_by(end_after):
    return lambda leader: managed({2: leader}, SETTINGS, end_after=end_after)


async def test_next_fetch_leaves_before_the_answer_is_appended():
    leader = Source()
    mirror = Mirror(5, leader=leader)
    async with reads_ahead(mirror)(leader) as manager:
        add(manager, A, mirror)
        assert await leader.offset_asked() == 1
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
        assert await leader.offset_asked() == 3
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
        assert await leader.offset_asked() == 5
        await turns_until(lambda: mirror.log_end == 5)
        assert mirror.plans_at_append == [2, 3]


async def test_answer_up_to_the_log_end_is_appended_before_the_next_fetch():
    """A mirror that is not behind gains nothing by reading ahead."""

    leader = Source()
    mirror = Mirror(5, leader=leader)
    async with reads_ahead(mirror)(leader) as manager:
        add(manager, A, mirror)
        assert await leader.offset_asked() == 1
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        assert await leader.offset_asked() == 2
        assert mirror.plans_at_append == [1]


async def test_append_that_fails_leaves_no_hole():
    """The answer to the early request does not fit the log: it is dropped, and requested again from the log end."""

    leader = Source()
    mirror = Mirror(5, leader=leader)
    async with reads_ahead(mirror)(leader) as manager:
        add(manager, A, mirror)
        assert await leader.offset_asked() == 1
        mirror.broken = "bytes"
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
        assert await leader.offset_asked() == 3
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(6, 6)))
        plan = await leader.plan()
        while A not in plan.to_send:  # it waits a moment
            leader.say()
            plan = await leader.plan()
        assert plan.to_send[A].fetch_offset == 1
        assert mirror.epochs_of == [5]


async def test_partition_that_was_removed_meanwhile_gets_no_append():
    leader = Source()
    mirror, other = Mirror(5, leader=leader), Mirror(5, leader=leader)
    of_both = managed_by(lambda data: mirror.log_end + len(data) // 4)
    async with of_both(leader) as manager:
        with manager.together():
            add(manager, A, mirror)
            add(manager, B, other)
        assert await leader.offset_asked() == 1
        fetch = leader.fetch

        async def fetch_while_it_is_removed(plan, *, max_wait_ms):
            manager.remove([A])
            return await fetch(plan, max_wait_ms=max_wait_ms)

        leader.fetch = fetch_while_it_is_removed
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)), FetchedPartition(B, 0, 9, 0, None, records(5, 5)))
        assert await leader.offset_asked(B) == 3
        await turns_until(lambda: other.log_end == 3)
        assert mirror.epochs_of == [5]


async def test_answer_is_appended_although_the_connection_is_lost_meanwhile():
    leader = Source()
    mirror = Mirror(5, leader=leader)
    async with reads_ahead(mirror)(leader) as manager:
        add(manager, A, mirror)
        assert await leader.offset_asked() == 1
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
        leader.answers.put_nowait(ConnectionError("gone"))
        assert await leader.offset_asked() == 3
        assert await leader.offset_asked() == 3  # again, and over a new connection
        assert mirror.epochs_of == [5, 5, 5]
        assert leader.connections == 2


def test_bug_in_an_append_ends_the_fetcher():
    class Buggy(Mirror):
        def append_follower(self, data, leader_high_watermark, leader_log_start):
            raise BrokenInvariant("a bug")

    async def run():
        leader = Source()
        mirror = Buggy(5, leader=leader)
        async with reads_ahead(mirror)(leader) as manager:
            add(manager, A, mirror)
            assert await leader.offset_asked() == 1
            leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
            await asyncio.get_running_loop().create_future()  # until the group is ended

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run())
    assert raised.group_contains(BrokenInvariant, match="a bug")


async def test_follower_never_reads_ahead():
    """A follower's next fetch acknowledges the records below its offset."""

    leader = Source()
    follower = Mirror(5, leader=leader)
    async with managed({2: leader}, SETTINGS) as manager:
        add(manager, A, follower)
        assert await leader.offset_asked() == 1
        leader.say(FetchedPartition(A, 0, 9, 0, None, records(5, 5)))
        assert await leader.offset_asked() == 3
        assert follower.plans_at_append == [1]

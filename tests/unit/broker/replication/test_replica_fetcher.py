"""The fetcher's task with a scripted leader. Only back-offs take real time."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from barnabas.broker.replication.fetch_steps import (
    EpochAnswer,
    EpochQuestion,
    FetchedPartition,
    OffsetsAnswer,
    TierAnswer,
)
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.follower_session import FetchEntry, FetchPlan
from barnabas.broker.replication.leader_endpoint import FetchAnswer, FetcherSettings, RemoteLeader
from barnabas.broker.storage.epoch_cache import EpochEnd
from barnabas.client.errors import ConnectionLost
from barnabas.wire import codec
from barnabas.wire.messages.fetch import EpochEndOffset as Diverging
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.unit.broker.replication.fetch_fakes import FakeReplica, records

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)
ID = TopicId(b"o" * 16)
SETTINGS = FetcherSettings(broker_id=1, replica_fetch_backoff_ms=30, replica_fetch_wait_max_ms=10_000)


class ScriptedLeader:
    """Answer each fetch with the test's next answer; if there is none, wait as a long poll does."""

    def __init__(self, *, truncates_on_fetch=True):
        self.truncates_on_fetch = truncates_on_fetch
        self.answers = asyncio.Queue()
        self.plans = asyncio.Queue()
        self.connections = 0
        self._lost = None
        self.ends = {}
        self.offsets = {}

    async def prepare(self):
        if self._lost is None:
            self.connections += 1
            self._lost = asyncio.get_running_loop().create_future()
        return self.truncates_on_fetch

    async def fetch(self, plan, *, max_wait_ms):
        self.plans.put_nowait(plan)
        answer = asyncio.ensure_future(self.answers.get())
        try:
            await asyncio.wait({answer, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionLost("the connection was closed")
            if isinstance(answer.result(), Exception):
                raise answer.result()
            return answer.result()
        finally:
            answer.cancel()

    async def epoch_ends(self, questions):
        return {partition: self.ends[partition] for partition in questions}

    async def list_offsets(self, epochs):
        return {partition: self.offsets[partition] for partition in epochs}

    async def tier_starts(self, epochs):
        return dict.fromkeys(epochs, TierAnswer(0, local_start=4, log_start=0, epoch=1))

    def close(self):
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        self._lost = None

    def say(self, *fetched, session_id=5):
        self.answers.put_nowait(FetchAnswer(0, session_id, list(fetched), sum(len(f.records or b"") for f in fetched)))

    async def plan(self):
        async with asyncio.timeout(60):
            return await self.plans.get()


@asynccontextmanager
async def managed(leaders, settings=SETTINGS, throttle=None, end_after=None):
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        manager = FetcherManager(
            settings, tasks, SystemClock(), lambda broker: leaders[broker], throttle=throttle, end_after=end_after
        )
        yield manager
        manager.stop()


async def turns_until(condition):
    """Let the other tasks run for some turns; no time passes."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


def add(manager, partition, replica, *, leader=2, leader_epoch=5):
    manager.add(partition, replica, leader=leader, leader_epoch=leader_epoch, topic_id=ID)


async def test_records_reach_the_replica_and_the_next_fetch_acknowledges_them():
    leader, replica = ScriptedLeader(), FakeReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        assert (await leader.plan()).to_send[A].fetch_offset == 1
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5, 5)))
        assert (await leader.plan()).to_send[A].fetch_offset == 3
        assert replica.epochs_of == [1, 5, 5]
        assert replica.high_watermark == 2
        assert manager.max_lag == 0
        assert manager.fetcher_of(A).fetched_bytes == 8


async def test_follower_that_must_truncate_into_the_tier_begins_where_the_tier_ends():
    """Truncated there, it would not know which transactions were open, and later records would not show that they were
    aborted."""

    class Tier:
        async def begin(self, tp, *, local_start, epoch, log_start, is_wanted):
            assert is_wanted()
            replica.restart_at(local_start)
            begun.append((tp, local_start, epoch, log_start))

    begun, replica = [], FakeReplica(2, 2, 2, log_start=6)

    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        manager.tier = Tier()
        add(manager, A, replica)
        assert (await leader.plan()).to_send[A].fetch_offset == 9
        leader.say(FetchedPartition(A, 0, 9, 0, EpochEnd(1, 5), None))
        assert (await leader.plan()).to_send[A].fetch_offset == 4
        assert begun == [(A, 4, 1, 0)]


async def test_follower_that_began_after_a_deposed_leaders_tier_segment_truncates_as_its_own_leader_says():
    """The record before the leader's local start is in a segment that also has records which an unclean election removed.
    Starting there again and again would never end: the tier has no better segment."""

    class Tier:
        async def begin(self, tp, *, local_start, epoch, log_start, is_wanted):
            replica.restart_at(8)
            replica.tier_end = 8
            replica.cache.assign(epoch, log_start)
            begun.append(local_start)

    begun, replica = [], FakeReplica()

    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        manager.tier = Tier()
        add(manager, A, replica)
        assert (await leader.plan()).to_send[A].fetch_offset == 0
        leader.say(FetchedPartition(A, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
        plan = await leader.plan()
        assert (plan.to_send[A].fetch_offset, plan.to_send[A].last_fetched_epoch) == (8, 1)
        leader.say(FetchedPartition(A, 0, 9, 0, EpochEnd(1, 5), None))
        assert (await leader.plan()).to_send[A].fetch_offset == 5
        assert begun == [4]


async def test_records_that_must_be_flushed_are_acknowledged_only_on_disk():
    """`flush.messages`: the leader and producers with acks=all rely on the records that a fetch acknowledges."""

    leader, replica = ScriptedLeader(), FakeReplica(1)
    replica.disk = asyncio.Event()
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5, 5)))
        await turns_until(lambda: replica.epochs_of == [1, 5, 5])
        for _ in range(20):
            await asyncio.sleep(0)
        assert leader.plans.empty(), "it is not on disk"
        replica.disk.set()
        assert (await leader.plan()).to_send[A].fetch_offset == 3


async def test_new_partition_does_not_wait_for_the_end_of_a_long_poll():
    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        add(manager, B, FakeReplica(1))
        plan = await leader.plan()
        assert plan.is_full
        assert set(plan.to_send) == {A, B}
        assert leader.connections == 2


async def test_interrupted_poll_costs_the_connection_but_not_the_session():
    """The next request names only new partitions, however often a poll was interrupted."""

    leader, replica = ScriptedLeader(), FakeReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 1, 0))
        await leader.plan()
        for number in range(1, 4):
            new = TopicPartition("orders", number)
            add(manager, new, FakeReplica(1))
            plan = await leader.plan()
            assert (plan.session_id, plan.session_epoch, list(plan.to_send)) == (5, number + 1, [new])
            assert leader.connections == number + 1


async def test_partitions_that_come_together_interrupt_a_long_poll_once_and_are_all_in_the_next():
    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        many = [TopicPartition("orders", number) for number in range(1, 50)]
        with manager.together():
            for partition in many:
                add(manager, partition, FakeReplica(1))
                # A LeaderAndIsr for thousands of partitions pauses like this: the fetcher runs in between.
                await asyncio.sleep(0)
        plan = await leader.plan()
        assert set(plan.to_send) == {A, *many}
        assert leader.connections == 2


async def test_partitions_that_come_while_it_connects_are_in_the_first_request():
    """A leader of thousands of partitions fails: the first ones open the connection to the next leader, and all wait for it."""

    leader, connected = ScriptedLeader(), asyncio.Event()
    connect = leader.prepare

    async def connect_slowly():
        await connected.wait()
        return await connect()

    leader.prepare = connect_slowly
    async with managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await asyncio.sleep(0)
        add(manager, B, FakeReplica(1))
        connected.set()
        assert set((await leader.plan()).to_send) == {A, B}
        assert leader.connections == 1


class HangingLeader(ScriptedLeader):
    """Accepts connections and never answers, like a process that was stopped."""

    def __init__(self):
        super().__init__()
        self.asked = asyncio.Event()
        self.awake = asyncio.Event()

    async def prepare(self):
        self.asked.set()
        await self.awake.wait()
        return await super().prepare()


async def test_broker_stops_while_a_fetcher_connects_to_a_leader_that_hangs():
    leader = HangingLeader()
    async with asyncio.timeout(60), managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.asked.wait()


async def test_fetcher_does_not_wait_for_a_returned_leader_at_its_former_address():
    before, after = HangingLeader(), ScriptedLeader()
    leaders = {2: before}
    async with managed(leaders) as manager:
        add(manager, A, FakeReplica(1))
        await before.asked.wait()
        fetcher = manager.fetcher_of(A)
        manager.remove([A])
        leaders[2] = after
        add(manager, A, FakeReplica(1), leader_epoch=6)  # before the other one's task has had a turn
        assert manager.fetcher_of(A) is not fetcher
        assert (await after.plan()).to_send[A].current_leader_epoch == 6
        assert before.plans.empty()


async def test_pause_that_ends_while_the_fetcher_decides_is_not_a_failure():
    """The machine decides at one point in time whether to send; otherwise a fetch could go out without a connection."""

    class EachLookIsLater:
        now_s = 0.0

        def monotonic_s(self):
            self.now_s += 0.010  # a check before the end of a pause of 20 ms is followed by one at its end
            return self.now_s

    leader = ScriptedLeader()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        manager = FetcherManager(SETTINGS, tasks, EachLookIsLater(), lambda broker: leader)
        add(manager, A, FakeReplica(1))
        await leader.plan()
        leader.answers.put_nowait(ConnectionLost("the leader went away"))
        await leader.plan()
        assert leader.connections == 2
        manager.stop()


async def test_leader_that_refuses_connections_is_tried_with_pauses():
    leader, tries = ScriptedLeader(), []
    connect = leader.prepare

    async def refuse():
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 4:
            raise ConnectionRefusedError(111, "Connection refused")
        return await connect()

    leader.prepare = refuse
    async with managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        pauses_s = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert all(pause_s > 0.015 for pause_s in pauses_s), pauses_s


async def test_broken_connection_is_opened_again():
    leader, replica = ScriptedLeader(), FakeReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.answers.put_nowait(ConnectionLost("reset by peer"))
        await leader.plan()
        assert leader.connections == 2


async def test_fetcher_ends_with_its_last_partition_and_another_is_started_when_needed():
    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        first = manager.fetcher_of(A)
        manager.remove([A])
        leader.say()
        assert (await leader.plan()).forgotten[0].partition == A
        leader.say(session_id=0)
        await turns_until(lambda: first.ended)
        assert manager.fetcher_count == 0
        add(manager, A, FakeReplica(1))
        await leader.plan()
        assert manager.fetcher_of(A) is not first


async def test_partition_moves_to_its_new_leader():
    leaders = {2: ScriptedLeader(), 3: ScriptedLeader()}
    replica = FakeReplica(1)
    async with managed(leaders) as manager:
        add(manager, A, replica)
        await leaders[2].plan()
        add(manager, A, replica, leader=3, leader_epoch=6)
        assert (await leaders[3].plan()).to_send[A].current_leader_epoch == 6
        leaders[2].say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        await leaders[2].plan()
        assert replica.epochs_of == [1], "answers of the old leader are not appended any more"


async def test_diverging_replica_is_truncated_before_it_fetches():
    leader, replica = ScriptedLeader(), FakeReplica(1, 1, 2)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 0, 0, EpochEnd(1, 1)))
        assert (await leader.plan()).to_send[A].fetch_offset == 1
        assert replica.epochs_of == [1]


async def test_empty_epoch_that_a_former_leader_began_is_removed():
    leader, replica = ScriptedLeader(), FakeReplica(1, 1)
    replica.cache.assign(4, 2)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        assert (await leader.plan()).to_send[A].last_fetched_epoch == 4
        leader.say(FetchedPartition(A, 0, 0, 0, EpochEnd(1, 2)))
        entry = (await leader.plan()).to_send[A]
        assert (entry.fetch_offset, entry.last_fetched_epoch) == (2, 1)
        assert replica.epochs_of == [1, 1]


async def test_broker_that_is_about_to_stop_follows_no_new_leader():
    leader, other = ScriptedLeader(), ScriptedLeader()
    async with managed({2: leader, 3: other}) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        manager.take_no_more()
        add(manager, B, FakeReplica(1), leader=3)
        assert manager.fetcher_of(B) is None
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        assert (await leader.plan()).to_send[A].fetch_offset == 2, "it keeps following the partitions that it had"


async def test_answer_that_arrives_while_the_broker_stops_is_not_appended():
    leader, replica = ScriptedLeader(), FakeReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        await asyncio.sleep(0)
        manager.stop()
        add(manager, A, replica, leader_epoch=6)
        assert manager.fetcher_count == 0
    assert replica.epochs_of == [1]


async def test_answer_that_arrives_while_the_broker_stops_does_not_look_at_closed_logs():
    class ClosedReplica(FakeReplica):
        is_closed = False

        @property
        def log_end(self):
            if self.is_closed:
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no log of orders-0 here")
            return super().log_end

        @property
        def latest_epoch(self):
            if self.is_closed:
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no log of orders-0 here")
            return super().latest_epoch

    leader, replica = ScriptedLeader(), ClosedReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 2, 0, EpochEnd(0, 0), None))
        await asyncio.sleep(0)
        manager.stop()
        replica.is_closed = True


async def test_old_leader_is_asked_for_its_epochs_and_then_for_its_offsets():
    leader, replica = ScriptedLeader(truncates_on_fetch=False), FakeReplica(1, 2)
    leader.ends[A] = EpochAnswer(0, EpochEnd(1, 1))
    leader.offsets[A] = OffsetsAnswer(0, latest=60, earliest=40)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        assert (await leader.plan()).to_send[A].fetch_offset == 1
        leader.say(FetchedPartition(A, ErrorCode.OFFSET_OUT_OF_RANGE))
        assert (await leader.plan()).to_send[A].fetch_offset == 40
        assert (replica.log_start, replica.epochs_of) == (40, [])


@pytest.mark.parametrize("what", ["bytes", "descriptors"])
async def test_corrupt_bytes_are_fetched_again_and_a_failed_disk_is_reported(what: str):
    leader, replica = ScriptedLeader(), FakeReplica(1)
    async with managed({2: leader}) as manager:
        add(manager, A, replica)
        await leader.plan()
        replica.broken = what
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        assert (await leader.plan()).forgotten[0].partition == A, "it pauses"
        leader.say(session_id=0)
        assert (await leader.plan()).to_send[A].fetch_offset == 1
        replica.broken = "disk"
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5)))
        await turns_until(lambda: A in manager.failed)
        assert "Input/output error" in manager.failed[A]
        assert manager.fetcher_of(A) is None
        leader.say(session_id=0)


async def test_number_of_fetchers_can_change_at_runtime():
    leader = ScriptedLeader()
    async with managed({2: leader}) as manager:
        replicas = {TopicPartition("orders", n): FakeReplica(1) for n in range(4)}
        for partition, replica in replicas.items():
            add(manager, partition, replica)
        assert manager.fetcher_count == 1
        manager.resize(2)
        assert len({manager.fetcher_of(partition) for partition in replicas}) == 2


async def test_replication_quota_counts_every_byte():
    class Quota:
        taken = 0

        def is_throttled(self, partition):
            return False

        def record(self, partition, size):
            Quota.taken += size

    leader = ScriptedLeader()
    async with managed({2: leader}, throttle=Quota()) as manager:
        add(manager, A, FakeReplica(1))
        await leader.plan()
        leader.say(FetchedPartition(A, 0, 2, 0, None, records(5, 5, 5)))
        await leader.plan()
        assert Quota.taken == 12


# --- the wire ---------------------------------------------------------------------------------------------------------


class FakeConnection:
    """Each message goes through the real codec, in the requested version."""

    closed = False

    def __init__(self, highest, *responses):
        self.highest = highest
        self.responses = list(responses)
        self.requests = []
        self.versions = self

    def pick(self, message):
        return min(message.MAX_VERSION, self.highest.get(message, message.MAX_VERSION))

    async def request(self, message, response_type, *, version=None, timeout_ms=0):
        if version is None:
            version = self.pick(type(message))
        data = codec.encode(message, version)
        self.requests.append((version, codec.decode(type(message), memoryview(data), version)))
        response = self.responses.pop(0)
        return codec.decode(response_type, memoryview(codec.encode(response, version)), version)

    def close(self):
        self.closed = True


def remote(connection):
    async def connect(broker):
        return connection

    return RemoteLeader(2, connect, SETTINGS, lambda: 99)


def plan_of(topic_id=ID):
    return FetchPlan(0, 0, {A: FetchEntry(topic_id, 7, 3, 5, 4, 1000)}, (), topic_id != ZERO_TOPIC_ID)


async def test_fetch_in_the_newest_version_of_kafka_3_9():
    data = PartitionData(
        partition_index=0, high_watermark=8, log_start_offset=3, diverging_epoch=Diverging(epoch=3, end_offset=6)
    )
    topic = FetchableTopicResponse(topic_id=ID, partitions=[data])
    connection = FakeConnection({}, FetchResponse(session_id=12, responses=[topic]))
    leader = remote(connection)
    assert await leader.prepare()
    answer = await leader.fetch(plan_of(), max_wait_ms=250)
    version, request = connection.requests[0]
    assert version == 17
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, 99)
    assert request.max_wait_ms == 250
    sent = request.topics[0].partitions[0]
    assert request.topics[0].topic_id == ID
    assert (sent.fetch_offset, sent.log_start_offset, sent.current_leader_epoch) == (7, 3, 5)
    assert sent.last_fetched_epoch == 4
    assert answer.session_id == 12
    (fetched,) = answer.partitions
    assert (fetched.partition, fetched.high_watermark, fetched.log_start) == (A, 8, 3)
    assert fetched.diverging == EpochEnd(3, 6)


async def test_fetch_without_topic_ids_uses_names():
    data = PartitionData(partition_index=0, high_watermark=8, records=b"abc")
    response = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[data])])
    connection = FakeConnection({}, response)
    leader = remote(connection)
    await leader.prepare()
    answer = await leader.fetch(plan_of(ZERO_TOPIC_ID), max_wait_ms=0)
    version, request = connection.requests[0]
    assert version == 12
    assert request.replica_id == 1
    assert request.topics[0].topic == "orders"
    assert answer.partitions[0].partition == A
    assert bytes(answer.partitions[0].records) == b"abc"
    assert answer.size == 3


def test_leader_before_version_12_does_not_truncate_on_fetch():
    assert not asyncio.run(remote(FakeConnection({FetchRequest: 11})).prepare())


@pytest.mark.parametrize(("end_of_epoch_before", "epoch"), [(89, 4), (90, 3)])
async def test_starts_in_the_tier_are_asked_for_with_the_epoch_of_the_record_before(end_of_epoch_before, epoch):
    """The local start, 90, has epoch 4. The record before has it too, unless the epoch before ended there."""

    end = EpochEndOffset(partition=0, leader_epoch=3, end_offset=end_of_epoch_before)
    epochs = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="orders", partitions=[end])])

    def listed(offset, leader_epoch):
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset, leader_epoch=leader_epoch)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])

    connection = FakeConnection({}, listed(90, 4), listed(10, 0), epochs)
    leader = remote(connection)
    await leader.prepare()
    assert await leader.tier_starts({A: 5}) == {A: TierAnswer(0, local_start=90, log_start=10, epoch=epoch)}
    local, start, before = (request for _, request in connection.requests)
    assert [request.topics[0].partitions[0].timestamp for request in (local, start)] == [-4, -2]
    assert before.topics[0].partitions[0].leader_epoch == 3


async def test_epoch_ends_and_offsets_are_asked_as_a_replica():
    end = EpochEndOffset(partition=0, leader_epoch=3, end_offset=6)
    epochs = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="orders", partitions=[end])])

    def listed(offset):
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])

    connection = FakeConnection({}, epochs, listed(90), listed(50))
    leader = remote(connection)
    await leader.prepare()
    assert await leader.epoch_ends({A: EpochQuestion(5, 4)}) == {A: EpochAnswer(0, EpochEnd(3, 6))}
    assert await leader.list_offsets({A: 5}) == {A: OffsetsAnswer(0, 90, 50)}
    asked = [request for _, request in connection.requests]
    assert isinstance(asked[0], OffsetForLeaderEpochRequest)
    assert all(isinstance(request, ListOffsetsRequest) for request in asked[1:])
    assert [request.replica_id for request in asked] == [1, 1, 1]
    assert [request.topics[0].partitions[0].timestamp for request in asked[1:]] == [-1, -2]


async def test_partition_added_after_the_stop_is_not_fetched():
    async with managed({}) as manager:
        manager.stop()
        add(manager, A, FakeReplica(1))  # a LeaderAndIsr in progress when the broker stops
        assert manager.fetcher_of(A) is None
        assert manager.fetcher_count == 0

"""Members of a group: their assignments, and how a member reacts if the coordinator disagrees."""

import asyncio
from collections.abc import Callable

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused, DeadlineExceeded
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.group import GroupConsumer, assign_range
from barnabas.client.membership import GroupConfig
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from barnabas.wire.messages.leave_group import LeaveGroupResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from barnabas.wire.records import BatchBuilder
from tests.support.waiting import eventually
from tests.unit.client.client_fake_broker import Call
from tests.unit.client.client_fake_cluster import FakeCluster, canned

pytestmark = pytest.mark.uvloop

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14


def test_partitions_are_cut_into_ranges_and_the_first_members_get_one_more() -> None:
    plan = assign_range({"b": ["t"], "a": ["t"], "c": ["t"]}, {"t": 7})
    assert {member: [p.partition for p in parts] for member, parts in plan.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }


def test_topic_is_assigned_only_to_its_subscribers() -> None:
    plan = assign_range({"a": ["t", "u"], "b": ["t"]}, {"t": 2, "u": 2})
    assert plan == {
        "a": [TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("u", 1)],
        "b": [TopicPartition("t", 1)],
    }


def test_more_members_than_partitions_leaves_some_idle() -> None:
    assert assign_range({"a": ["t"], "b": ["t"]}, {"t": 1}) == {"a": [TopicPartition("t", 0)], "b": []}


def test_topic_that_does_not_exist_gives_nothing() -> None:
    assert assign_range({"a": ["nix"]}, {}) == {"a": []}


class OneMemberGroup:
    """A coordinator for a single member, which is therefore the leader and gets the assignment that it computes."""

    def __init__(self, fake: FakeCluster) -> None:
        self.generation = 0
        self.joins: list[JoinGroupRequest] = []
        self.committed: dict[int, int] = {}
        self.commits: list[dict[int, int]] = []
        self.left = False
        self.commit_error = ErrorCode.NONE
        self.heartbeats: list[ErrorCode] = []
        fake.broker.handlers |= {
            FIND_COORDINATOR: canned([FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1)])]),
            JOIN: self._join,
            SYNC: self._sync,
            HEARTBEAT: self._heartbeat,
            LEAVE: self._leave,
            OFFSET_FETCH: self._fetch,
            OFFSET_COMMIT: self._commit,
        }

    def _join(self, call: Call) -> None:
        request = call.message
        assert isinstance(request, JoinGroupRequest)
        self.joins.append(request)
        if not request.member_id:
            call.reply(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1"))
            return
        self.generation += 1
        me = JoinGroupResponseMember(member_id="m-1", metadata=request.protocols[0].metadata)
        call.reply(
            JoinGroupResponse(
                generation_id=self.generation,
                protocol_type="consumer",
                protocol_name="range",
                leader="m-1",
                member_id="m-1",
                members=[me],
            )
        )

    def _sync(self, call: Call) -> None:
        assert isinstance(call.message, SyncGroupRequest)
        call.reply(SyncGroupResponse(assignment=bytes(call.message.assignments[0].assignment)))

    def _heartbeat(self, call: Call) -> None:
        call.reply(HeartbeatResponse(error_code=self.heartbeats.pop(0) if self.heartbeats else 0))

    def _leave(self, call: Call) -> None:
        self.left = True
        call.reply(LeaveGroupResponse())

    def _fetch(self, call: Call) -> None:
        assert isinstance(call.message, OffsetFetchRequest)
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=self.committed.get(index, -1), metadata=""
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in call.message.groups[0].topics or ()
        ]
        call.reply(OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)]))

    def _commit(self, call: Call) -> None:
        request = call.message
        assert isinstance(request, OffsetCommitRequest)
        offsets = {part.partition_index: part.committed_offset for part in request.topics[0].partitions}
        if not self.commit_error:
            assert (request.member_id, request.generation_id_or_member_epoch) == ("m-1", self.generation)
            self.committed |= offsets
            self.commits.append(offsets)
        call.reply(
            OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        name=request.topics[0].name,
                        partitions=[
                            OffsetCommitResponsePartition(partition_index=index, error_code=self.commit_error)
                            for index in offsets
                        ],
                    )
                ]
            )
        )


def records(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(None, value, timestamp=1)
    return builder.build()


EARLIEST = ConsumerConfig(auto_offset_reset="earliest")


async def test_member_gets_its_id_joins_leads_reads_commits_and_leaves() -> None:
    fake = FakeCluster(topics={"t": 2})
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a", b"b"), 0)
    fake.append("t", records(b"c"), 1)
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
    ):
        values: list[bytes | None] = []
        while len(values) < 3:
            for fetched in await consumer.poll(100):
                values += [record.value for record in fetched.records()]
                consumer.consumed(fetched.partition, fetched.next_position)
        assert sorted(value or b"" for value in values) == [b"a", b"b", b"c"]
    assert [request.member_id for request in group.joins] == ["", "m-1"]
    assert group.committed == {0: 2, 1: 1}
    assert group.left


async def test_member_resumes_at_its_committed_offsets() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    group.committed = {0: 1}
    fake.append("t", records(b"a", b"b"))
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
    ):
        (fetched,) = await consumer.poll(1_000)
        assert [record.value for record in fetched.records()] == [b"b"]


async def test_only_consumed_offsets_are_committed() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a", b"b", b"c"))
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
    ):
        await consumer.poll(1_000)
        consumer.consumed(TopicPartition("t", 0), 1)
    assert group.committed == {0: 1}


async def test_heartbeat_that_reports_a_rebalance_makes_the_member_join_again() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    group.heartbeats = [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS]
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", heartbeat_interval_ms=10)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            await consumer.poll(1)
            while consumer.joins < 2:
                await consumer.poll(10)
                await asyncio.sleep(0.005)
    assert group.generation == 2
    assert group.joins[-1].member_id == "m-1"


async def test_forgotten_member_starts_over_without_its_id() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    group.heartbeats = [ErrorCode.UNKNOWN_MEMBER_ID]
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", heartbeat_interval_ms=10)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            await consumer.poll(1)
            while consumer.joins < 2:
                await consumer.poll(10)
                await asyncio.sleep(0.005)
    assert [request.member_id for request in group.joins] == ["", "m-1", "", "m-1"]


async def test_commit_that_is_refused_for_good_is_raised() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a"))
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
    ):
        await consumer.poll(1_000)
        consumer.consumed(TopicPartition("t", 0), 1)
        group.commit_error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        with pytest.raises(BrokerRefused, match="GROUP_AUTHORIZATION_FAILED"):
            await consumer.commit()
        group.commit_error = ErrorCode.NONE


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_records_of_a_failed_poll_are_returned_by_the_next_one(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Otherwise the next commit would include records that the application has not seen."""
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a", b"b"), 0)
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
    ):
        plain_poll = consumer.consumer.poll

        async def poll(timeout_ms: int) -> list[Fetched]:
            """Return records. By then the commit beside it has failed, or the caller no longer waits."""
            monkeypatch.undo()
            while not (found := await plain_poll(100)):
                pass
            consumer._start("commit", consumer._commit_quietly)
            if how == "raises":
                group.commit_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                await asyncio.wait([consumer._beside["commit"]])
            else:
                asyncio.get_running_loop().call_soon(polling.cancel)
            return found

        monkeypatch.setattr(Consumer, "poll", lambda self, timeout_ms: poll(timeout_ms))
        polling = asyncio.ensure_future(consumer.poll(5_000))
        with pytest.raises(BrokerRefused if how == "raises" else asyncio.CancelledError):
            await polling
        group.commit_error = ErrorCode.NONE
        async with asyncio.timeout(10):
            while not (found := await consumer.poll(100)):
                pass
        assert [record.value for fetched in found for record in fetched.records()] == [b"a", b"b"]


async def test_static_member_does_not_leave() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", group_instance_id="one")
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            await consumer.poll(500)
    assert not group.left
    assert group.joins[-1].group_instance_id == "one"


async def test_idle_member_joins_again_when_the_group_rebalances() -> None:
    """A poll without a time limit once did not notice that the group had rebalanced."""
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    group.heartbeats = [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS]
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", heartbeat_interval_ms=10)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            waiting = asyncio.create_task(consumer.poll(3_600_000))
            await eventually(lambda: consumer.joins == 2)
            fake.append("t", records(b"a"))
            assert [fetched.position for fetched in await waiting] == [0]


async def test_idle_member_commits_consumed_offsets() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a", b"b"))
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", auto_commit_interval_ms=20)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            (fetched,) = await consumer.poll(5_000)
            consumer.consumed(fetched.partition, fetched.next_position)
            waiting = asyncio.create_task(consumer.poll(3_600_000))
            await eventually(lambda: group.committed == {0: 2})
            waiting.cancel()


async def test_member_that_was_thrown_out_hands_out_nothing_before_it_has_joined_again() -> None:
    fake = FakeCluster()
    group = OneMemberGroup(fake)
    async with fake.client() as cluster:
        config = GroupConfig(group_id="g", heartbeat_interval_ms=10)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            await consumer.poll(100)
            group.heartbeats = [ErrorCode.ILLEGAL_GENERATION]
            await eventually(lambda: consumer.member.generation < 0)
            fake.append("t", records(b"a"))
            assert await consumer.poll(5_000)
            assert consumer.joins == 2


@pytest.mark.parametrize("matching", [None, lambda name: name.startswith("t")])
async def test_partitions_and_topics_that_are_added_are_read_from_their_start(
    matching: Callable[[str], bool] | None,
) -> None:
    """Even with auto.offset.reset=latest: otherwise records from before the member noticed the topic would be skipped."""
    fake = FakeCluster()
    OneMemberGroup(fake)
    async with fake.client(metadata_max_age_ms=50) as cluster:
        topics = ["t"] if matching is None else []
        group = GroupConfig(group_id="g")
        async with GroupConsumer(cluster, group, topics=topics, matching=matching) as consumer:
            await consumer.poll(100)
            new = "t" if matching is None else "t2"
            fake.topics[new] = 2
            fake.append(new, records(b"a"), 1)
            (fetched,) = await consumer.poll(5_000)
            assert fetched.partition == TopicPartition(new, 1)


async def test_deleted_topic_does_not_affect_the_others_and_is_read_when_it_is_back() -> None:
    fake = FakeCluster(topics={"t": 1, "u": 1})
    OneMemberGroup(fake)
    async with (
        fake.client(metadata_max_age_ms=50, api_timeout_ms=300) as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t", "u"], config=EARLIEST) as consumer,
    ):
        await consumer.poll(100)
        del fake.topics["u"]
        await consumer.poll(1_500)  # several times as long as the client asks for a topic that is not there
        fake.append("t", records(b"a"))
        (fetched,) = await consumer.poll(5_000)
        assert fetched.partition == TopicPartition("t", 0)
        consumer.consumed(fetched.partition, fetched.next_position)
        assert consumer.consumer.assignment == [TopicPartition("t", 0)]
        fake.topics["u"] = 2
        fake.append("u", records(b"b"), 1)
        (fetched,) = await consumer.poll(5_000)
        assert fetched.partition == TopicPartition("u", 1)


async def test_poll_ends_in_time_without_a_coordinator() -> None:
    fake = FakeCluster()
    OneMemberGroup(fake)
    none = Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    found = FindCoordinatorResponse(coordinators=[none])
    fake.broker.handlers[FIND_COORDINATOR] = canned([found])
    async with (
        fake.client() as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t"], config=EARLIEST) as consumer,
        asyncio.timeout(30),  # far less than the client would try for
    ):
        assert await consumer.poll(100) == []


async def test_topic_whose_offsets_cannot_be_committed_any_more_keeps_the_member_from_nothing() -> None:
    """Its consumed records were not committed yet, and each attempt to join again once failed because of that."""
    fake = FakeCluster(topics={"t": 1, "u": 1})
    group = OneMemberGroup(fake)
    fake.append("u", records(b"a"))
    async with (
        fake.client(metadata_max_age_ms=50, api_timeout_ms=300) as cluster,
        GroupConsumer(cluster, GroupConfig(group_id="g"), topics=["t", "u"], config=EARLIEST) as consumer,
    ):
        (fetched,) = await consumer.poll(5_000)
        consumer.consumed(fetched.partition, fetched.next_position)
        del fake.topics["u"]
        group.commit_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await until_joined(consumer, 2)
        group.commit_error = ErrorCode.NONE
        fake.append("t", records(b"b"))
        (fetched,) = await consumer.poll(5_000)
        assert fetched.partition == TopicPartition("t", 0)


async def until_joined(consumer: GroupConsumer, joins: int) -> None:
    while consumer.joins < joins:
        await consumer.poll(10)


async def test_member_that_cannot_fetch_its_offsets_drops_its_old_partitions() -> None:
    """It once continued with the partitions of the old generation, and committed them in the new one."""
    fake = FakeCluster(topics={"t": 2})
    group = OneMemberGroup(fake)
    fake.append("t", records(b"a"))
    fetch_offsets = fake.broker.handlers[OFFSET_FETCH]
    async with fake.client(api_timeout_ms=200) as cluster:
        config = GroupConfig(group_id="g", heartbeat_interval_ms=10)
        async with GroupConsumer(cluster, config, topics=["t"], config=EARLIEST) as consumer:
            (fetched,) = await consumer.poll(5_000)
            consumer.consumed(fetched.partition, fetched.next_position)
            pending = OffsetFetchResponsePartitions(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT, metadata="")
            unstable = OffsetFetchResponseGroup(
                group_id="g", topics=[OffsetFetchResponseTopics(name="t", partitions=[pending])]
            )
            fake.broker.handlers[OFFSET_FETCH] = canned([OffsetFetchResponse(groups=[unstable])])
            group.heartbeats = [ErrorCode.REBALANCE_IN_PROGRESS]
            with pytest.raises(DeadlineExceeded, match="UNSTABLE_OFFSET_COMMIT"):
                await consumer.poll(5_000)
            assert consumer.consumer.assignment == [], "another member may have them by now"
            commits = len(group.commits)
            await consumer.commit()
            assert len(group.commits) == commits
            fake.broker.handlers[OFFSET_FETCH] = fetch_offsets
            fake.append("t", records(b"b"))
            (fetched,) = await consumer.poll(5_000)
            assert [record.value for record in fetched.records()] == [b"b"], "it has joined again"

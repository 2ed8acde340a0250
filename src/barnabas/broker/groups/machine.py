"""The group machine: every group and committed offset of one partition of `__consumer_offsets`.

An operation returns a `Result`: records to write, an answer or none yet, and effects (timers, answers to other waiting
requests). Only `replay` changes the state that the log holds. Handlers change only the state that is lost with the coordinator,
such as waiting requests and a rebalance in progress. Time and randomness come in as arguments and in `GroupEnvironment`; there
is no I/O.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import inspection, records
from barnabas.broker.groups.bridge import ClassicMembers
from barnabas.broker.groups.classic import HEARTBEAT, INITIAL, JOIN, SYNC, ClassicProtocol
from barnabas.broker.groups.classic_group import DEAD, STABLE, ClassicGroup
from barnabas.broker.groups.classic_member import NO_MEMBER_ID
from barnabas.broker.groups.consumer import DOWNGRADED, MEMBER_TIMERS, ConsumerProtocol
from barnabas.broker.groups.consumer_group import ConsumerGroup
from barnabas.broker.groups.consumer_replay import CONSUMER_REPLAYS
from barnabas.broker.groups.group import Group, GroupEnvironment, Outcome, Requester
from barnabas.broker.groups.offset_store import OffsetCommit, OffsetStore
from barnabas.broker.groups.offsets import Offsets
from barnabas.broker.groups.replay import GroupReplay
from barnabas.broker.groups.share import SHARE_SESSION, ShareProtocol
from barnabas.broker.groups.share_admin import ShareAdmin
from barnabas.broker.groups.share_group import ShareGroup
from barnabas.broker.groups.share_replay import SHARE_REPLAYS
from barnabas.broker.groups.streams import StreamsProtocol
from barnabas.broker.groups.streams_group import StreamsGroup
from barnabas.broker.groups.streams_replay import STREAMS_REPLAYS
from barnabas.broker.groups.subscriptions import MayDescribe
from barnabas.broker.runtime.machine import Marker, ReplayedRecord, Result, Ticket
from barnabas.wire.messages import consumer_group_describe
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.wire.messages.delete_groups import DeleteGroupsResponse
from barnabas.wire.messages.describe_groups import DescribedGroup
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from barnabas.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from barnabas.wire.messages.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from barnabas.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

CHECK_OFFSETS: Final = "check offsets"
EXPIRE_OFFSETS: Final = "expire offsets"
FORGET_TOPICS: Final = "forget topics"


class GroupMachine:
    """A `barnabas.broker.runtime.machine.Machine`. Owner: one shard of the runtime."""

    def __init__(self, env: GroupEnvironment) -> None:
        self._env = env
        #: Groups of all kinds by id.
        self.groups: dict[str, Group] = {}
        self.store = OffsetStore()
        self._classic = ClassicProtocol(self.groups, env)
        self._consumer = ConsumerProtocol(self.groups, env)
        #: Operations on share groups.
        self.share = ShareProtocol(self.groups, env)
        self.share_admin = ShareAdmin(self.groups, self.share, env)
        #: Operations on streams groups.
        self.streams = StreamsProtocol(self.groups, env)
        self._classic_members = ClassicMembers(self._consumer, env)
        self._replay_group = GroupReplay(self.groups, (CONSUMER_REPLAYS, SHARE_REPLAYS, STREAMS_REPLAYS)).replay
        self._offsets = Offsets(self.groups, self.store, self._classic, env)
        #: Deleted topics whose offsets must still be removed, in batches.
        self._forgotten: set[str] = set()
        #: Ids of deleted topics that the records of share groups may still name.
        self._forgotten_ids: set[bytes] = set()

    # -- classic groups ------------------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, requester: Requester, ticket: Ticket, now_ms: int
    ) -> Result[JoinGroupResponse]:
        _require_group_id(request.group_id)
        self._classic.check_session_timeout(request.session_timeout_ms)
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            return self._classic_members.join(group, request, requester, Outcome(), now_ms)
        if isinstance(group, ShareGroup) or (isinstance(group, StreamsGroup) and not group.is_empty):
            return Outcome().result(
                JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=NO_MEMBER_ID)
            )
        if isinstance(group, (ConsumerGroup, StreamsGroup)) and request.member_id == NO_MEMBER_ID:
            # An empty group of another protocol becomes a classic one. Its empty record must be in the log: otherwise the
            # next coordinator would find offsets without a group.
            empty = ClassicGroup(request.group_id, state_timestamp_ms=now_ms)
            return Result(
                [*group.tombstones(), empty.record({})],
                then=lambda: self._classic.join(request, requester, ticket, Outcome(), now_ms),
            )
        return self._classic.join(request, requester, ticket, Outcome(), now_ms)

    def join_abandoned(self, group_id: str, is_abandoned: Callable[[Ticket], bool], now_ms: int) -> Result[None]:
        """Handle a client that disconnected while its JoinGroup waited."""
        out = Outcome()
        group = self._classic.find(group_id)
        if group is not None:
            self._classic.join_abandoned(group, is_abandoned, out, now_ms)
        return out.result()

    def sync(self, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> Result[SyncGroupResponse]:
        group = self._require_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.sync(group, request, Outcome())
        return self._classic.sync(_classic(group), request, ticket, Outcome(), now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Result[HeartbeatResponse]:
        group = self._require_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, request, Outcome())
        return self._classic.heartbeat(_classic(group), request, Outcome())

    def leave(self, request: LeaveGroupRequest, now_ms: int) -> Result[LeaveGroupResponse]:
        """Remove members. The caller has turned the one member of versions before 3 into a list."""
        group = self._require_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, request.members, Outcome())
        return self._classic.leave(_classic(group), request.members, Outcome(), now_ms)

    def _require_group(self, group_id: str) -> Group:
        _require_group_id(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")
        return group

    # -- consumer groups -----------------------------------------------------------------------------------------------

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        requester: Requester,
        now_ms: int,
        may_describe: MayDescribe = lambda topic: True,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """`may_describe`: whether the requester may see a topic that its regular expression matches."""
        return self._consumer.heartbeat(request, requester, may_describe, Outcome(), now_ms)

    def describe_consumer_group(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        group = self._consumer.find(group_id)
        if group is None:
            return consumer_group_describe.DescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} is not a consumer group."
                if group_id in self.groups
                else f"Group {group_id} not found.",
            )
        return group.describe(self._env.topics, self._env.settings().consumer_assignors[0])

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, *, api_version: int, now_ms: int
    ) -> Result[OffsetCommitResponse]:
        return self._offsets.commit(request, Outcome(), api_version=api_version, now_ms=now_ms)

    def commit_offsets_in_transaction(
        self, request: TxnOffsetCommitRequest, requester: Requester, now_ms: int
    ) -> Result[TxnOffsetCommitResponse]:
        _require_group_id(request.group_id)
        return self._offsets.commit_in_transaction(request, requester, Outcome(), now_ms)

    def fetch_offsets(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        return self._offsets.fetch(request, require_stable=require_stable)

    def delete_offsets(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        _require_group_id(request.group_id)
        return self._offsets.delete(request)

    # -- administration --------------------------------------------------------------------------------------------------

    def describe(self, group_id: str, *, api_version: int) -> DescribedGroup:
        return inspection.describe_classic(self.groups, group_id, api_version=api_version)

    def list_groups(self, request: ListGroupsRequest) -> list[ListedGroup]:
        return inspection.list_groups(self.groups, request)

    def delete_groups(self, group_ids: list[str]) -> Result[DeleteGroupsResponse]:
        return inspection.delete_groups(self.groups, self._offsets, group_ids)

    def topics_deleted(self, topics: Iterable[str], topic_ids: Iterable[bytes] = ()) -> Result[None]:
        self._forgotten.update(topics)
        self._forgotten_ids.update(topic_ids)
        return self._forget_topics()

    def _forget_topics(self) -> Result[None]:
        """Write one batch of tombstones. If it cannot be written, the next expiry tries again."""
        topics = self._env.topics
        self._forgotten = {
            name for name in self._forgotten if topics.partition_count(name) == 0
        }  # a topic may exist again
        out = Outcome()
        self.share.forget_topics(self._forgotten_ids, out)
        self._offsets.forget_topics(sorted(self._forgotten), out)
        if out.records:
            out.set_timer((FORGET_TOPICS,), 0)
        else:
            self._forgotten.clear()
            self._forgotten_ids.clear()
        return out.result()

    # -- the log -------------------------------------------------------------------------------------------------------

    def replay(self, record: ReplayedRecord) -> None:
        written = record.record
        if isinstance(written, records.OffsetRecord):
            self._replay_offset(written.commit, record)
            return
        entry = records.decode(written)
        if entry is None:
            return
        key, value = entry
        if isinstance(key, OffsetCommitKey):
            if value is None:
                self.store.replay_tombstone(key.group, key.topic, key.partition)
            else:
                assert isinstance(value, OffsetCommitValue)
                self._replay_offset(records.commit_of(key, value), record)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_classic_group(key.group, value, record.timestamp_ms)
        else:
            self._replay_group(key, value)

    def _replay_offset(self, commit: OffsetCommit, record: ReplayedRecord) -> None:
        group_id = commit.group_id
        if group_id not in self.groups:
            # Offsets without members belong to a simple consumer, or an administrator wrote them.
            self.groups[group_id] = ClassicGroup(group_id, state_timestamp_ms=record.timestamp_ms)
        self.store.replay(commit, record_offset=record.offset, producer_id=record.producer.producer_id)

    def _replay_classic_group(self, group_id: str, value: GroupMetadataValue | None, timestamp_ms: int) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                group.transition(DEAD, timestamp_ms)
                del self.groups[group_id]
            return
        if not isinstance(group, ClassicGroup):
            group = self.groups[group_id] = ClassicGroup(group_id)
        group.load(value)

    def replay_marker(self, marker: Marker, offset: int) -> None:
        self.store.end_transaction(marker.producer.producer_id, is_commit=marker.is_commit)

    def loaded(self, now_ms: int) -> Result[None]:
        out = Outcome()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self._classic.loaded(group, out, now_ms)
            elif isinstance(group, ConsumerGroup):
                self._consumer.loaded(group, out)
            elif isinstance(group, ShareGroup):
                self.share.loaded(group, out)
            elif isinstance(group, StreamsGroup):
                self.streams.loaded(group, out)
        out.set_timer((CHECK_OFFSETS,), self._env.settings().offsets_retention_check_interval_ms)
        return out.result()

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]:
        assert isinstance(key, tuple)
        out = Outcome()
        what, *rest = key
        if what == CHECK_OFFSETS:
            # This writes nothing and cannot be refused, so there is always a next check.
            out.set_timer((CHECK_OFFSETS,), self._env.settings().offsets_retention_check_interval_ms)
            out.set_timer((EXPIRE_OFFSETS,), 0)
            out.set_timer((FORGET_TOPICS,), 0)
        elif what == EXPIRE_OFFSETS:
            if not self._offsets.expire(out, now_ms):
                out.set_timer((EXPIRE_OFFSETS,), 0)
        elif what == FORGET_TOPICS:
            return self._forget_topics()
        else:
            group = self.groups.get(rest[0])
            if isinstance(group, ClassicGroup):
                self._classic_timer_fired(what, group, rest[1:], out, now_ms)
            elif isinstance(group, ConsumerGroup) and what in MEMBER_TIMERS:
                self._consumer.timer_fired(what, group, rest[1], out, now_ms)
            elif isinstance(group, ShareGroup) and what == SHARE_SESSION:
                self.share.session_expired(group, rest[1], out)
            elif isinstance(group, StreamsGroup):
                self.streams.timer_fired(what, group, rest[1:], out, now_ms)
        return out.result()

    def _classic_timer_fired(
        self, what: object, group: ClassicGroup, rest: list[object], out: Outcome, now_ms: int
    ) -> None:
        if what == DOWNGRADED:
            if group.state is STABLE:
                self._classic.prepare_rebalance(group, out, now_ms)
        elif what == HEARTBEAT:
            (member_id,) = rest
            assert isinstance(member_id, str)
            self._classic.heartbeat_expired(group, member_id, out, now_ms)
        elif what == JOIN:
            self._classic.join_expired(group, out, now_ms)
        elif what == INITIAL:
            self._classic.initial_delay_expired(group, out, now_ms)
        elif what == SYNC:
            (generation,) = rest
            assert isinstance(generation, int)
            self._classic.sync_expired(group, generation, out, now_ms)

    def unloaded(self) -> list[Ticket]:
        return [
            ticket for group in self.groups.values() if isinstance(group, ClassicGroup) for ticket in group.tickets()
        ]


def _require_group_id(group_id: str) -> None:
    if not group_id:
        raise Refused(ErrorCode.INVALID_GROUP_ID)


def _classic(group: Group) -> ClassicGroup:
    if not isinstance(group, ClassicGroup):
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    return group

"""The group coordinator of one broker: it finds the partition of `__consumer_offsets` in which a group is stored, runs
operations on the machine of that partition, and passes changes of topics to the machines.

Owner: the event loop. Operations return a future, which gets its answer when the written records are committed; often that is
at once. An error for the client is raised as `Refused`, or is the future's exception.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from barnabas.base.config.derived import Derived
from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import Refused
from barnabas.base.topics import GROUP_METADATA_TOPIC
from barnabas.broker.groups import metrics
from barnabas.broker.groups.group import GroupEnvironment, Requester
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.share_groups import FindEnds, ShareGroups
from barnabas.broker.groups.streams import CreateInternalTopics
from barnabas.broker.groups.streams_groups import CreateTopics, StreamsGroups
from barnabas.broker.groups.subscriptions import MayDescribe
from barnabas.broker.groups.topic_view import TopicView
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.machine import Marker, Producer, Reply, Result, Ticket
from barnabas.broker.runtime.shard import ShardState
from barnabas.broker.runtime.share_state import SharePersister
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataChange
from barnabas.wire.messages import consumer_group_describe
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.wire.messages.delete_groups import DeletableGroupResult
from barnabas.wire.messages.describe_groups import DescribedGroup
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from barnabas.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from barnabas.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from barnabas.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

log = logging.getLogger(__name__)


class TransactionToVerify(NamedTuple):
    """A transaction that is about to write offsets into a partition of `__consumer_offsets`, to verify it (KIP-890)."""

    partition: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    api_version: int


#: Returns the guard to append with, if one is needed. Raises `Refused` if there is no such transaction.
VerifyTransaction = Callable[[TransactionToVerify], Awaitable[object | None]]


class GroupCoordinator:
    def __init__(
        self,
        context: CoordinatorContext,
        *,
        consumer_protocol_enabled: Callable[[], bool],
        verify_transaction: VerifyTransaction,
        group_config: Callable[[str], GroupConfig],
        share_persister: SharePersister,
        find_ends: FindEnds,
        create_topics: CreateTopics,
        unique: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        metadata = self._metadata = context.metadata
        self._now_ms = context.now_ms
        self._verify_transaction = verify_transaction
        self.settings = Derived(context.config, GroupSettings)
        self.topic = context.internal_topic(GROUP_METADATA_TOPIC, lambda: self.settings().new_topic)
        env = GroupEnvironment(
            settings=self.settings,
            group_config=group_config,
            topics=TopicView(metadata),
            unique=unique,
            consumer_protocol_enabled=consumer_protocol_enabled,
            counts=metrics.group_counts(context.registry),
        )
        self._runtime = CoordinatorRuntime[GroupMachine](
            self.topic.name,
            context.log,
            make_machine=lambda partition: GroupMachine(env),
            now_ms=context.now_ms,
            timers=context.timers,
            spawn=context.spawn,
            on_effect=self._carry_out,
            answer_timeout_ms=lambda: context.config().offsets_commit_timeout_ms,
            on_loaded=metrics.load_time(context.registry),
        )
        #: Operations on share groups.
        self.share = ShareGroups(
            self._runtime,
            share_persister,
            find_ends,
            topics=env.topics,
            partition_for=self.partition_for,
            now_ms=context.now_ms,
            spawn=context.spawn,
        )
        #: Operations on streams groups.
        self.streams = StreamsGroups(
            self._runtime,
            create_topics,
            partition_for=self.partition_for,
            now_ms=context.now_ms,
            spawn=context.spawn,
        )
        metrics.add_gauges(context.registry, self)
        self._unsubscribe = metadata.subscribe(self._metadata_changed)

    # -- where groups live ---------------------------------------------------------------------------------------------

    def partition_for(self, group_id: str) -> int:
        return self.topic.partition_for(group_id)

    def elected(self, partition: int, epoch: int) -> None:
        """This broker has become leader of a partition of the topic."""
        self._runtime.elected(partition, epoch)

    def resigned(self, partition: int) -> None:
        self._runtime.resigned(partition)

    def _carry_out(self, partition: int, message: object) -> None:
        if isinstance(message, CreateInternalTopics):
            self.streams.carry_out(partition, message)
        else:
            self.share.carry_out(partition, message)

    def close(self) -> None:
        self._unsubscribe()
        self._runtime.close()

    @property
    def machines(self) -> Mapping[int, GroupMachine]:
        """Machines of the partitions that are served, for metrics and tests."""
        return self._runtime.active

    def partitions_in(self, state: ShardState) -> int:
        """Number of partitions in this state, for metrics."""
        return self._runtime.count(state)

    # -- classic groups ------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, requester: Requester) -> "asyncio.Future[JoinGroupResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.join(request, requester, ticket, self._now_ms()),
        )

    def join_abandoned(self, group_id: str, future: "asyncio.Future[JoinGroupResponse]") -> None:
        """Handle a client that disconnected before its JoinGroup was answered."""
        self._runtime.submit(
            self.partition_for(group_id),
            lambda machine: machine.join_abandoned(group_id, lambda ticket: ticket.future is future, self._now_ms()),
        )

    def sync(self, request: SyncGroupRequest) -> "asyncio.Future[SyncGroupResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.sync(request, ticket, self._now_ms()),
        )

    def heartbeat(self, request: HeartbeatRequest) -> "asyncio.Future[HeartbeatResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.heartbeat(request, self._now_ms()),
        )

    def leave(self, request: LeaveGroupRequest) -> "asyncio.Future[LeaveGroupResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.leave(request, self._now_ms()),
        )

    # -- consumer groups -----------------------------------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, requester: Requester, may_describe: MayDescribe
    ) -> "asyncio.Future[ConsumerGroupHeartbeatResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.consumer_heartbeat(request, requester, self._now_ms(), may_describe),
        )

    async def describe_consumer_group(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        return await self._runtime.read(
            self.partition_for(group_id), lambda machine: machine.describe_consumer_group(group_id)
        )

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, reply: Reply[OffsetCommitResponse], *, api_version: int
    ) -> None:
        """Call `reply` with the answer or the error. There is no future, because commits are so frequent."""
        # A group's commits do not depend on other groups' offsets, so several groups' offsets share an append.
        self._runtime.gather(
            self.partition_for(request.group_id),
            lambda machine, ticket: machine.commit_offsets(request, api_version=api_version, now_ms=self._now_ms()),
            reply,
        )

    async def commit_offsets_in_transaction(
        self, request: TxnOffsetCommitRequest, requester: Requester
    ) -> TxnOffsetCommitResponse:
        partition = self.partition_for(request.group_id)
        self._runtime.require(partition)
        guard = await self._verify_transaction(
            TransactionToVerify(
                partition,
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                requester.api_version,
            )
        )

        def commit(machine: GroupMachine, ticket: Ticket) -> Result[TxnOffsetCommitResponse]:
            result = machine.commit_offsets_in_transaction(request, requester, self._now_ms())
            result.guard = guard
            return result

        return await self._runtime.write(partition, commit)

    async def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        return await self._runtime.read(
            self.partition_for(request.group_id),
            lambda machine: machine.fetch_offsets(request, require_stable=require_stable),
        )

    def delete_offsets(self, request: OffsetDeleteRequest) -> "asyncio.Future[OffsetDeleteResponse]":
        return self._runtime.begin(
            self.partition_for(request.group_id), lambda machine, ticket: machine.delete_offsets(request)
        )

    def txn_completed(
        self, partition: int, producer_id: int, producer_epoch: int, *, committed: bool, offset: int
    ) -> None:
        """Handle a transaction marker that was written to a partition of the topic that this broker leads."""
        self._runtime.replay_marker(partition, Marker(Producer(producer_id, producer_epoch), committed), offset)

    # -- administration --------------------------------------------------------------------------------------------------

    async def describe(self, group_id: str, *, api_version: int) -> DescribedGroup:
        return await self._runtime.read(
            self.partition_for(group_id), lambda machine: machine.describe(group_id, api_version=api_version)
        )

    async def list_groups(self, request: ListGroupsRequest) -> list[ListedGroup]:
        """Return the groups that this broker coordinates."""
        return await self._runtime.read_all(lambda machine: machine.list_groups(request))

    async def delete_groups(self, group_ids: list[str]) -> list[DeletableGroupResult]:
        by_partition: dict[int, list[str]] = {}
        for group_id in group_ids:
            by_partition.setdefault(self.partition_for(group_id), []).append(group_id)
        results: list[DeletableGroupResult] = []
        for partition, ids in by_partition.items():
            try:
                ids = await self.share.delete_states(partition, ids, results)
                response = await self._runtime.write(
                    partition,
                    lambda machine, ticket, ids=ids: machine.delete_groups(ids),  # type: ignore[misc]
                )
            except Refused as refusal:
                results += [
                    DeletableGroupResult(group_id=each, error_code=refusal.code, error_message=refusal.message)
                    for each in ids
                ]
            else:
                results += response.results
        return results

    # -- topics --------------------------------------------------------------------------------------------------------

    def _metadata_changed(self, change: MetadataChange) -> None:
        deleted = {tp.topic for tp in change.deleted if self._metadata.topic(tp.topic) is None}
        if deleted or change.deleted_ids:
            self._runtime.submit_all(lambda machine: machine.topics_deleted(deleted, change.deleted_ids))

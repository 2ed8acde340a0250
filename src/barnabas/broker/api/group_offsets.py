"""Committed offsets: OffsetCommit v2 to v10 (v10 with topic ids), TxnOffsetCommit v0 to v6 (KIP-447, KIP-890; v6 with
topic ids), OffsetFetch v1 to v10 (batched KIP-709, stable KIP-447, member epochs KIP-848), OffsetDelete v0 (KIP-496).

Versions that kept offsets in ZooKeeper (OffsetCommit and OffsetFetch v0) are not served.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.later import answer_later, replying, requester_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from barnabas.wire.versions import api_named

#: From this version of OffsetCommit and OffsetFetch on, requests name topics by their ids.
TOPIC_IDS_FROM = 10
#: From this version of TxnOffsetCommit on, requests name topics by their ids.
TXN_TOPIC_IDS_FROM = 6
#: From this version of OffsetFetch on, a request contains several groups.
BATCHED_FETCH_FROM = 8
#: Before this version of TxnOffsetCommit, producers do not know COORDINATOR_LOAD_IN_PROGRESS, and give up (KAFKA-7296).
TXN_LOAD_IN_PROGRESS_FROM = 2
#: Before this version, OffsetFetch had no top-level error: each partition carried it.
TOP_LEVEL_ERROR_FROM = 2


class _Partition(Protocol):
    partition_index: int


class _Topic(Protocol):
    name: str
    partitions: list[Any]


P = TypeVar("P", bound=_Partition)
T = TypeVar("T", bound=_Topic)
A = TypeVar("A")


refuse_txn_commit = refusal("topics.partitions <- topics.partitions").of(api_named("TxnOffsetCommit"))


def refuse_fetch(
    request: OffsetFetchRequest, code: ErrorCode, message: str | None, *, api_version: int = 0
) -> ApiMessage:
    """Build an error response. If the version is unknown, each partition carries the error as well."""
    response = OffsetFetchResponse(error_code=code, groups=[_group_refused(group, code) for group in request.groups])
    if api_version < TOP_LEVEL_ERROR_FROM:
        response.topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each, committed_offset=-1, metadata="", error_code=code
                    )
                    for each in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    return response


class GroupOffsetsApi:
    def __init__(self, context: BrokerContext, coordinator: GroupCoordinator) -> None:
        self._context = context
        self._groups = coordinator

    def _require(self, call: Call, operation: AclOperation, group_id: str) -> None:
        if not self._context.allows(call, operation, AclResourceType.GROUP, group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def _split(self, call: Call, topic: str, partitions: list[P], answer: Callable[..., A]) -> tuple[list[P], list[A]]:
        """Return the partitions to which offsets may be committed, and error answers for the others."""
        if not self._context.allows_topic(call, AclOperation.READ, topic):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return [], [answer(partition_index=wanted.partition_index, error_code=error) for wanted in partitions]
        image = self._context.metadata.topic(topic)
        known = image.partitions if image is not None else {}
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        good = [each for each in partitions if each.partition_index in known]
        bad = (
            [wanted for wanted in partitions if wanted.partition_index not in known]
            if len(good) < len(partitions)
            else []
        )
        return good, [answer(partition_index=wanted.partition_index, error_code=error) for wanted in bad]

    # -- OffsetCommit --------------------------------------------------------------------------------------------------

    @serves("OffsetCommit", refusal("topics.partitions <- topics.partitions"))
    def commit(self, call: Call, request: OffsetCommitRequest) -> HandlerResult:
        self._require(call, AclOperation.READ, request.group_id)
        refused: list[OffsetCommitResponseTopic] = []
        accepted: list[OffsetCommitRequestTopic] = []
        for topic in request.topics:
            if call.api_version >= TOPIC_IDS_FROM:
                name = self._context.metadata.topic_name(TopicId(topic.topic_id))
                if name is None:
                    refused.append(_commit_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                    continue
                topic.name = name
            good, answers = self._split(call, topic.name, topic.partitions, OffsetCommitResponsePartition)
            if answers:
                refused.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
            if good:
                accepted.append(topic if not answers else topic.replace(partitions=good))
        if not accepted:
            return OffsetCommitResponse(topics=refused)

        def finish(response: OffsetCommitResponse) -> OffsetCommitResponse:
            _add_refused(response.topics, refused)
            return response

        # If the coordinator refuses, the response has an error for every partition of the request.
        reply = replying(call, request, finish if refused else None)
        sent = request.replace(topics=accepted) if refused else request
        self._groups.commit_offsets(sent, reply, api_version=call.api_version)
        return None

    # -- TxnOffsetCommit -----------------------------------------------------------------------------------------------

    @serves("TxnOffsetCommit", refuse_txn_commit)
    async def commit_in_transaction(self, call: Call, request: TxnOffsetCommitRequest) -> ApiMessage:
        if not self._context.allows(
            call, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id
        ):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        self._require(call, AclOperation.READ, request.group_id)
        refused: list[TxnOffsetCommitResponseTopic] = []
        accepted = []
        for topic in request.topics:
            if call.api_version >= TXN_TOPIC_IDS_FROM:
                name = self._context.metadata.topic_name(TopicId(topic.topic_id))
                if name is None:
                    refused.append(_txn_commit_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                    continue
                topic.name = name
            good, answers = self._split(call, topic.name, topic.partitions, TxnOffsetCommitResponsePartition)
            if answers:
                refused.append(
                    TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
                )
            if good:
                accepted.append(topic.replace(partitions=good))
        if not accepted:
            return TxnOffsetCommitResponse(topics=refused)
        request.topics = accepted
        try:
            response = await self._groups.commit_offsets_in_transaction(request, requester_of(call))
        except Refused as refusal:
            code = refusal.code
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and call.api_version < TXN_LOAD_IN_PROGRESS_FROM:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            response = cast(TxnOffsetCommitResponse, refuse_txn_commit(request, code, refusal.message))
        _add_refused(response.topics, refused)
        return response

    # -- OffsetFetch ---------------------------------------------------------------------------------------------------

    @serves("OffsetFetch", refuse_fetch)
    async def fetch(self, call: Call, request: OffsetFetchRequest) -> ApiMessage:
        if call.api_version >= BATCHED_FETCH_FROM:
            groups = [await self._fetch_group(call, group, request.require_stable) for group in request.groups]
            return OffsetFetchResponse(groups=groups)
        topics = None
        if request.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        one = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        group = await self._fetch_group(call, one, request.require_stable)
        if group.error_code:
            return refuse_fetch(request, ErrorCode(group.error_code), None, api_version=call.api_version)
        return OffsetFetchResponse(topics=[_unbatched(topic) for topic in group.topics])

    async def _fetch_group(
        self, call: Call, request: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        if not self._context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, request.group_id):
            return _group_refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        is_all = request.topics is None
        refused: list[OffsetFetchResponseTopics] = []
        if request.topics is not None:
            allowed = []
            for topic in request.topics:
                error = self._check_fetched_topic(call, topic)
                if error is ErrorCode.NONE:
                    allowed.append(topic)
                else:
                    refused.append(_fetch_refused(topic, error))
            request = request.replace(topics=allowed)
        try:
            response = await self._groups.fetch_offsets(request, require_stable=require_stable)
        except Refused as refusal:
            code = refusal.code
            if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # The response waits for slow replicas, which Kafka does not wait for. Java consumers before 3.9 do not know
                # COORDINATOR_NOT_AVAILABLE here, and give up. COORDINATOR_LOAD_IN_PROGRESS makes every client try again.
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return _group_refused(request, code)
        if is_all:
            response.topics = [
                topic
                for topic in response.topics
                if self._context.shows(call, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name)
            ]
            for answers in response.topics:
                answers.topic_id = self._context.metadata.topic_id(answers.name)
        if not response.error_code:
            response.topics += refused
        return response

    def _check_fetched_topic(self, call: Call, topic: OffsetFetchRequestTopics) -> ErrorCode:
        if call.api_version >= TOPIC_IDS_FROM:
            name = self._context.metadata.topic_name(TopicId(topic.topic_id))
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic.name = name
        if not self._context.allows_topic(call, AclOperation.DESCRIBE, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.NONE

    # -- OffsetDelete --------------------------------------------------------------------------------------------------

    @serves("OffsetDelete", refusal())
    def delete(self, call: Call, request: OffsetDeleteRequest) -> HandlerResult:
        self._require(call, AclOperation.DELETE, request.group_id)
        refused: list[OffsetDeleteResponseTopic] = []
        accepted = []
        for topic in request.topics:
            good, answers = self._split(call, topic.name, topic.partitions, OffsetDeleteResponsePartition)
            if answers:
                refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
            if good:
                accepted.append(topic.replace(partitions=good))

        def finish(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
            _add_refused(response.topics, refused)
            return response

        future = self._groups.delete_offsets(request.replace(topics=accepted))
        return answer_later(call, request, future, finish)


def _add_refused(topics: list[T], refused: list[T]) -> None:
    """Add refused partitions. Each topic appears once, as in Kafka: clients that index by topic see only the last one."""
    known = {topic.name: topic for topic in topics}
    for topic in refused:
        # A topic with an unknown id has no name.
        answered = known.get(topic.name) if topic.name else None
        if answered is None:
            topics.append(topic)
        else:
            answered.partitions += topic.partitions


def _txn_commit_refused(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    partitions = [
        TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
        for each in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _commit_refused(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
        for each in topic.partitions
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _fetch_refused(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(partition_index=each, committed_offset=-1, metadata="", error_code=code)
        for each in topic.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _group_refused(request: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=code)


def _unbatched(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ],
    )

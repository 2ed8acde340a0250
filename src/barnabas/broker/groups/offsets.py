"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and the expiry of offsets.

Pure; owner: the group machine.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups import records
from barnabas.broker.groups.classic import ClassicProtocol
from barnabas.broker.groups.classic_group import PREPARING, STABLE, ClassicGroup
from barnabas.broker.groups.group import CheckCommit, Expiry, Group, GroupEnvironment, Outcome, Requester
from barnabas.broker.groups.offset_store import CommittedOffset, OffsetCommit, OffsetStore
from barnabas.broker.runtime.machine import KeyValue, Producer, Result
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
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
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: From this version of OffsetCommit on, there is an error code for a missing group.
GROUP_ID_NOT_FOUND_FROM: Final = 9
#: From this version of TxnOffsetCommit on, producers know member epochs, and groups that do not exist (KIP-1319).
TXN_MEMBER_EPOCH_FROM: Final = 6
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
#: An offset that expires with its group.
NO_EXPIRY: Final = -1
#: The largest value that a record can hold.
EXPIRY_MAX_MS: Final = 2**63 - 1
#: Tombstones in one batch: it must fit into `max.message.bytes`.
TOMBSTONES_MAX: Final = 2_000
#: Bytes of the keys in one batch of tombstones; a key has a group and a topic.
TOMBSTONE_BYTES_MAX: Final = 256 * 1024

R = TypeVar("R")


def removed_in_batches(tombstones: list[KeyValue], response: R) -> Result[R]:
    """Write the tombstones of a request in batches; answer when the last batch is committed.

    One batch may be too small: a group with a few topics has tens of thousands of offsets.
    """
    fitting = _fitting(tombstones)
    if fitting == len(tombstones):
        return Result(tombstones, response)
    return Result(tombstones[:fitting], then=lambda: removed_in_batches(tombstones[fitting:], response))


def _fitting(tombstones: list[KeyValue]) -> int:
    """Return how many of the tombstones fit into one batch."""
    size_bytes = 0
    for at, (key, _) in enumerate(tombstones):
        size_bytes += len(key)
        if at and (at == TOMBSTONES_MAX or size_bytes > TOMBSTONE_BYTES_MAX):
            return at
    return len(tombstones)


class _Batch:
    """Tells whether one more tombstone fits into the batch."""

    __slots__ = ("_counted", "_size_bytes", "_tombstones")

    def __init__(self, tombstones: list[KeyValue]) -> None:
        self._tombstones = tombstones
        self._counted = 0
        self._size_bytes = 0

    @property
    def has_room(self) -> bool:
        self._size_bytes += sum(len(key) for key, _ in self._tombstones[self._counted :])
        self._counted = len(self._tombstones)
        return self._counted < TOMBSTONES_MAX and self._size_bytes < TOMBSTONE_BYTES_MAX


class Offsets:
    """Operations on the offsets of one shard."""

    def __init__(
        self,
        groups: dict[str, Group],
        store: OffsetStore,
        classic: ClassicProtocol,
        env: GroupEnvironment,
    ) -> None:
        self._groups = groups
        self._store = store
        self._classic = classic
        self._env = env

    # -- commit --------------------------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, out: Outcome, *, api_version: int, now_ms: int
    ) -> Result[OffsetCommitResponse]:
        generation = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is not None:
            check = group.check_offset_commit(
                request.member_id,
                request.group_instance_id,
                generation,
                api_version=api_version,
                is_transactional=False,
            )
            if check is not None:
                _check_each(check, request.topics)
        elif generation >= 0:
            known = api_version >= GROUP_ID_NOT_FOUND_FROM
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ClassicGroup) and group.is_in(STABLE, PREPARING):
            # A commit renews the session.
            self._classic.heard_from(group, group.members[request.member_id], out)
        # Some clients send the largest int64 for an unlimited retention.
        expire_ms = (
            NO_EXPIRY if request.retention_time_ms == -1 else min(now_ms + request.retention_time_ms, EXPIRY_MAX_MS)
        )
        response = OffsetCommitResponse()
        for topic in request.topics:
            answers = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answers)
            for each in topic.partitions:
                error = self._write(request.group_id, topic.name, each, out, now_ms, expire_ms)
                answers.partitions.append(
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                )
        self._env.counts.offset_commit(len(out.records))
        return out.result(response)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, requester: Requester, out: Outcome, now_ms: int
    ) -> Result[TxnOffsetCommitResponse]:
        group = self._groups.get(request.group_id)
        knows_epochs = requester.api_version >= TXN_MEMBER_EPOCH_FROM
        if group is None:
            if request.generation_id >= 0:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION)
        else:
            try:
                check = group.check_offset_commit(
                    request.member_id,
                    request.group_instance_id,
                    request.generation_id,
                    api_version=requester.api_version,
                    is_transactional=True,
                )
                if check is not None:
                    _check_each(check, request.topics)
            except Refused as refusal:
                if refusal.code is ErrorCode.STALE_MEMBER_EPOCH and not knows_epochs:
                    raise Refused(ErrorCode.ILLEGAL_GENERATION) from refusal
                raise
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            answers = TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answers)
            for each in topic.partitions:
                error = self._write(request.group_id, topic.name, each, out, now_ms, NO_EXPIRY)
                answers.partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                )
        self._env.counts.offset_commit(len(out.records))
        result = out.result(response)
        result.producer = Producer(request.producer_id, request.producer_epoch)
        return result

    def _write(
        self,
        group_id: str,
        topic: str,
        asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
        out: Outcome,
        now_ms: int,
        expire_ms: int,
    ) -> ErrorCode:
        metadata = asked.committed_metadata or ""
        if len(metadata) > self._env.settings().offset_metadata_bytes_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        commit = OffsetCommit(
            group_id,
            topic,
            asked.partition_index,
            asked.committed_offset,
            asked.committed_leader_epoch,
            metadata,
            now_ms,
            expire_ms,
        )
        out.records.append(records.offset_commit(commit))
        return ErrorCode.NONE

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        """Return the group's offsets for the requested partitions, or for all (`topics` is None)."""
        response = OffsetFetchResponseGroup(group_id=request.group_id)
        offsets = {}
        group = self._groups.get(request.group_id)
        if group is not None:
            try:
                group.check_offset_fetch(request.member_id, request.member_epoch)
                offsets = self._store.of_group(request.group_id)
            except Refused as refusal:
                if refusal.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    response.error_code = refusal.code
                    return response
        if request.topics is None:
            wanted: Iterable[tuple[str, bytes, Iterable[int]]] = [(topic, b"", offsets[topic]) for topic in offsets]
        else:
            wanted = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
        for topic, topic_id, partitions in wanted:
            known = offsets.get(topic, {})
            answers = OffsetFetchResponseTopics(name=topic, topic_id=topic_id or bytes(16))
            response.topics.append(answers)
            for partition in partitions:
                is_unstable = require_stable and self._store.is_pending(request.group_id, topic, partition)
                answers.partitions.append(_fetched(partition, known.get(partition), is_unstable=is_unstable))
        return response

    # -- delete --------------------------------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        group = self._groups.get(request.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        response = OffsetDeleteResponse()
        tombstones: list[KeyValue] = []
        for topic in request.topics:
            answers = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answers)
            is_subscribed = group.is_subscribed_to(topic.name)
            for each in topic.partitions:
                answer = OffsetDeleteResponsePartition(partition_index=each.partition_index)
                answers.partitions.append(answer)
                if is_subscribed:
                    answer.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._has(request.group_id, topic.name, each.partition_index):
                    tombstones.append(records.offset_tombstone(request.group_id, topic.name, each.partition_index))
        self._env.counts.offset_deletion(len(tombstones))
        return removed_in_batches(tombstones, response)

    def _has(self, group_id: str, topic: str, partition: int) -> bool:
        return self._store.get(group_id, topic, partition) is not None or self._store.is_pending(
            group_id, topic, partition
        )

    def delete_all(self, group_id: str) -> list[KeyValue]:
        """Return tombstones for all offsets of a deleted group, including those of open transactions."""
        doomed = {(topic, partition) for topic, each in self._store.of_group(group_id).items() for partition in each}
        doomed.update(self._store.pending_of_group(group_id))
        self._env.counts.offset_deletion(len(doomed))
        return [records.offset_tombstone(group_id, *each) for each in sorted(doomed)]

    def forget_topics(self, topics: Iterable[str], out: Outcome) -> None:
        """Remove offsets of deleted topics: as many as fit into one batch."""
        batch = _Batch(out.records)
        for topic in topics:
            for group_id, partition in sorted(self._store.holding(topic)):
                if not batch.has_room:
                    return
                out.records.append(records.offset_tombstone(group_id, topic, partition))

    # -- expiry --------------------------------------------------------------------------------------------------------

    def expire(self, out: Outcome, now_ms: int) -> bool:
        """Remove offsets that have outlived `offsets.retention.minutes`, and empty groups without offsets.

        False: there is more to do than fits into one batch.
        """
        batch = _Batch(out.records)
        for group in list(self._groups.values()):
            if not batch.has_room:
                return False
            if self._expire_group(group, out, batch, now_ms) and group.is_disposable:
                out.records.extend(group.tombstones())
        return True

    def _expire_group(self, group: Group, out: Outcome, batch: _Batch, now_ms: int) -> bool:
        """Remove the group's expired offsets. Return whether it has no offsets any more."""
        offsets = self._store.of_group(group.group_id)
        if not offsets:
            return not self._store.has_open_transaction(group.group_id)
        expiry = group.expiry()
        if expiry is None:
            return False
        all_expired = True
        for topic, partitions in offsets.items():
            if group.is_subscribed_to(topic):
                all_expired = False
                continue
            for partition, offset in partitions.items():
                if (
                    batch.has_room
                    and self._is_expired(offset, expiry, now_ms)
                    and not self._store.is_pending(group.group_id, topic, partition)
                ):
                    out.records.append(records.offset_tombstone(group.group_id, topic, partition))
                    self._env.counts.offset_expiration(1)
                else:
                    all_expired = False
        return all_expired and not self._store.has_open_transaction(group.group_id)

    def _is_expired(self, offset: CommittedOffset, expiry: Expiry, now_ms: int) -> bool:
        if offset.expire_timestamp_ms != -1:
            return now_ms >= offset.expire_timestamp_ms
        since_ms = offset.commit_timestamp_ms if expiry.since_ms is None else expiry.since_ms
        return now_ms - since_ms >= self._env.settings().offsets_retention_ms


def _check_each(check: CheckCommit, topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]) -> None:
    for topic in topics:
        for each in topic.partitions:
            check(topic.name, each.partition_index)


def _fetched(partition: int, offset: CommittedOffset | None, *, is_unstable: bool) -> OffsetFetchResponsePartitions:
    answer = OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, committed_leader_epoch=NO_EPOCH, metadata=""
    )
    if is_unstable:
        answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    elif offset is not None:
        answer.committed_offset = offset.offset
        answer.committed_leader_epoch = offset.leader_epoch
        answer.metadata = offset.metadata
    return answer

"""An internal topic as its coordinator uses it: records are appended with acks=all, and the whole log is read at election.

Owner: the event loop. Loading reads and decodes on a thread, in slices, so that other requests are served meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import Offset, TopicPartition
from barnabas.broker.replication.control_requests import LeadershipListener
from barnabas.broker.replication.log_waits import read_log
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.internal_log import Replay
from barnabas.broker.runtime.machine import NO_PRODUCER, KeyValue, Marker, Producer, ReplayedRecord
from barnabas.broker.storage.log_types import Origin, ReadResult
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import BatchBuilder, iter_records, plain_batch, read_end_txn_marker

#: Bytes of the log that are read and replayed before the loop runs other work.
LOAD_STEP_BYTES = 256 * 1024


class InternalTopicLog:
    """A `CoordinatorLog` over the replica manager."""

    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        pool: Executor,
        *,
        codec: Callable[[], int] = lambda: Codec.NONE,
    ) -> None:
        """`codec` returns the compression for appended records."""
        self._topic = topic
        self._replicas = replicas
        self._pool = pool
        self._codec = codec

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        *,
        producer: Producer,
        guard: object | None = None,
        now_ms: int,
        on_committed: Callable[[ErrorCode], None],
    ) -> int:
        def committed(error: ErrorCode) -> None:
            # The record is below the high watermark, so it is committed, if with fewer replicas than wanted. The machine has
            # applied it, and must not get an error.
            on_committed(ErrorCode.NONE if error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND else error)

        tp = TopicPartition(self._topic, partition)
        return self._replicas.appends.append_own(
            tp,
            self._batch(records, producer, now_ms),
            origin=Origin.COORDINATOR,
            now_ms=now_ms,
            guard=guard,
            on_committed=committed,
        )

    def _batch(self, records: Sequence[KeyValue], producer: Producer, now_ms: int) -> bytearray:
        producer_id, producer_epoch = producer
        codec = self._codec()
        if codec == Codec.NONE:
            return plain_batch(
                records,
                timestamp=now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id >= 0,
            )
        builder = BatchBuilder(
            codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id >= 0
        )
        for record in records:
            builder.append(record.key, record.value, timestamp=now_ms)
        return bytearray(builder.build())

    def delete_before(self, partition: int, offset: int) -> None:
        self._replicas.hosted.require(TopicPartition(self._topic, partition)).delete_records(offset)

    async def load(self, partition: int, replay: Replay) -> None:
        """Read the partition and replay it. Reading and decompressing run on a thread; the loop only replays."""
        replica = self._replicas.hosted.require(TopicPartition(self._topic, partition))
        leadership = replica.machine.leaderships
        offset = await self._load_from(replica.local_log.log_start_offset, replica, replay)
        # Records of the former leader above the high watermark are not committed yet. Clients may not see them, and no decision
        # may be carried out, before they are: another leader might not have them.
        replicated: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._replicas.appends.when_replicated(replica, offset, leadership, replicated.set_result)
        error = await replicated
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise Refused(error, f"this broker no longer leads {replica.tp}")
        # Transaction markers are written to `__consumer_offsets` by other brokers: there may be new records.
        await self._load_from(offset, replica, replay)

    async def _load_from(self, offset: Offset, replica: Partition, replay: Replay) -> Offset:
        """Replay up to the log end, and return the offset reached. The end may move meanwhile, and the log may move to another
        directory."""
        loop = asyncio.get_running_loop()
        while offset < (end := (log := replica.local_log).log_end_offset):
            # With `cleanup.policy=compact,delete` the next records may have been deleted meanwhile.
            offset = max(offset, log.log_start_offset)
            try:
                found = await read_log(log, offset, max_bytes=LOAD_STEP_BYTES, max_offset=end)
            except Refused:
                if replica.log in (None, log):
                    raise
                continue
            try:
                entries, next_offset = await loop.run_in_executor(self._pool, _read_entries, found)
            finally:
                found.release()
            if next_offset is None:
                break
            for entry, at in entries:
                replay(entry, at)
            offset = next_offset
        return offset


def _read_entries(found: ReadResult) -> tuple[list[tuple[ReplayedRecord | Marker, int]], Offset | None]:
    """Decode the records; return them and the next offset, None if there was no batch. Runs on a thread."""
    data = b"".join([file_range.read() for file_range in found.ranges])
    entries: list[tuple[ReplayedRecord | Marker, int]] = []
    next_offset: Offset | None = None
    for position, header in iter_batches(data, 0, len(data)):
        producer = Producer(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = read_end_txn_marker(data, position, header)
            if marker is not None:
                entries.append((Marker(producer, marker.is_commit), header.base_offset))
        else:
            owner = producer if header.is_transactional else NO_PRODUCER
            for record in iter_records(data, position, header):
                if record.key is not None:
                    entry = KeyValue(record.key, record.value)
                    entries.append((ReplayedRecord(entry, record.offset, record.timestamp, owner), record.offset))
        next_offset = Offset(header.next_offset)
    return entries, next_offset


class LeadsByPartition(Protocol):
    """A coordinator: the leader of a partition of its topic owns the groups or transactional ids of that partition."""

    @property
    def topic(self) -> InternalTopic: ...
    def elected(self, partition: int, epoch: int) -> None: ...
    def resigned(self, partition: int) -> None: ...


def leadership_listener(coordinator: LeadsByPartition) -> LeadershipListener:
    """Return a listener for `ControlRequests.subscribe` that notifies a coordinator of its own topic's partitions."""

    def changed(led: list[Partition], followed: list[Partition]) -> None:
        for partition in led:
            if partition.tp.topic == coordinator.topic.name:
                coordinator.elected(partition.tp.partition, partition.machine.leader_epoch)
        for partition in followed:
            if partition.tp.topic == coordinator.topic.name:
                coordinator.resigned(partition.tp.partition)

    return changed

"""An internal topic as its coordinator sees it: records appended with acks=all, the whole log read back at election.

Owner: the event loop. Loading decodes in slices, so that other requests are served meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.core.errors import ErrorCode, Refused
from barnabas.core.ids import TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import BatchBuilder, iter_records, read_end_txn_marker
from barnabas.replication.control_requests import LeadershipListener
from barnabas.replication.manager import AppendEntry, AppendOutcome, ReplicaManager
from barnabas.replication.partition import Partition
from barnabas.runtime.coordinator import KeyValue, Marker, Producer, Replay, ReplayedRecord
from barnabas.storage.log_types import Origin

#: How much of the log is read and replayed before others get their turn.
LOAD_STEP_BYTES = 256 * 1024


class InternalTopicLog:
    """A `CoordinatorLog` over the replica manager."""

    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        *,
        timeout_ms: Callable[[], int],
        guard_of: Callable[[TopicPartition, int], object | None] = lambda tp, producer_id: None,
    ) -> None:
        """`guard_of` gives the guard of a verified transaction whose first records here are about to be written."""
        self._guard_of = guard_of
        self._topic = topic
        self._replicas = replicas
        self._timeout_ms = timeout_ms

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        *,
        producer: Producer,
        now_ms: int,
        on_committed: Callable[[ErrorCode], None],
    ) -> int:
        batch = self._batch(records, producer, now_ms)
        refusal: Refused | None = None
        settled: ErrorCode | None = None
        returned = False

        def done(outcomes: list[AppendOutcome]) -> None:
            nonlocal refusal, settled
            [outcome] = outcomes
            error = outcome.error
            if error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                # Below the high watermark: committed, if by fewer than one would like. A machine that has replayed it
                # must not be told that it never happened.
                error = ErrorCode.NONE
            if returned:
                on_committed(error)
            elif log.log_end_offset == next_offset:
                refusal = Refused(error, outcome.message)
            else:
                settled = error  # at once, because nobody else is in the ISR

        tp = TopicPartition(self._topic, partition)
        log = self._replicas.require(tp).local_log
        next_offset = log.log_end_offset
        self._replicas.append(
            [AppendEntry(tp, batch, self._guard_of(tp, producer.producer_id) if producer.producer_id >= 0 else None)],
            required_acks=-1,
            timeout_ms=self._timeout_ms(),
            origin=Origin.COORDINATOR,
            on_done=done,
        )
        if refusal is not None:
            raise refusal
        returned = True
        if settled is not None:
            asyncio.get_running_loop().call_soon(on_committed, settled)
        return next_offset

    @staticmethod
    def _batch(records: Sequence[KeyValue], producer: Producer, now_ms: int) -> bytearray:
        builder = BatchBuilder(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=producer.producer_id >= 0,
        )
        for record in records:
            builder.append(record.key, record.value, timestamp=now_ms)
        return bytearray(builder.build())

    async def load(self, partition: int, replay: Replay) -> None:
        log = self._replicas.require(TopicPartition(self._topic, partition)).local_log
        offset = log.log_start_offset
        # To the very end, which may move meanwhile: markers are written to `__consumer_offsets` whoever loads it.
        while offset < (end := log.log_end_offset):
            found = log.read(offset, max_bytes=LOAD_STEP_BYTES, max_offset=end, min_one_batch=True)
            data = found.read()
            if not data:
                return
            for position, header in iter_batches(data, 0, len(data)):
                producer = Producer(header.producer_id, header.producer_epoch)
                if header.is_control:
                    marker = read_end_txn_marker(data, position, header)
                    if marker is not None:
                        replay(Marker(producer, marker.is_commit), header.base_offset)
                else:
                    owner = producer if header.is_transactional else Producer(-1, -1)
                    for record in iter_records(data, position, header):
                        if record.key is not None:
                            entry = KeyValue(record.key, record.value)
                            replay(ReplayedRecord(entry, record.offset, record.timestamp, owner), record.offset)
                offset = header.next_offset
            await asyncio.sleep(0)


class LeadsByPartition(Protocol):
    """A coordinator: whoever leads a partition of its topic has what belongs to that partition."""

    @property
    def topic(self) -> str: ...
    def elected(self, partition: int, epoch: int) -> None: ...
    def resigned(self, partition: int) -> None: ...


def leadership_listener(coordinator: LeadsByPartition) -> LeadershipListener:
    """For `ControlRequests.subscribe`: tells a coordinator of its own topic's partitions."""

    def changed(led: list[Partition], followed: list[Partition]) -> None:
        for partition in led:
            if partition.tp.topic == coordinator.topic:
                coordinator.elected(partition.tp.partition, partition.machine.leader_epoch)
        for partition in followed:
            if partition.tp.topic == coordinator.topic:
                coordinator.resigned(partition.tp.partition)

    return changed

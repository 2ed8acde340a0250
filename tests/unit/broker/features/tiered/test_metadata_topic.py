"""Reading `__remote_log_metadata` from leaders with incomplete knowledge, or with damaged records."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import crc32c
import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId
from barnabas.broker.features.tiered.metadata_records import encode_event, metadata_partition
from barnabas.broker.features.tiered.metadata_topic import MetadataUnavailable, RemoteMetadata
from barnabas.broker.features.tiered.segment_metadata import Event, SegmentState, TierPartition
from barnabas.client.connection import Connection
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.wire.records import BatchBuilder
from tests.manual_time import ManualClock
from tests.support.waiting import eventually
from tests.unit.broker.features.tiered.segments import segment, update

FIRST, SECOND = segment(1, 0, 9), segment(2, 10, 19)
ME, LEADER = BrokerId(1), BrokerId(2)


def written(*events: Event) -> list[bytes]:
    batches = []
    for offset, event in enumerate(events):
        builder = BatchBuilder(base_offset=offset, leader_epoch=0)
        builder.append(None, encode_event(event), timestamp=0)
        batches.append(bytes(builder.build()))
    return batches


class Leader:
    """The leader of the topic's only partition, as a `Connection`."""

    def __init__(self, batches: list[bytes]) -> None:
        self.batches = batches
        #: The high watermark.
        self.high_watermark = len(batches)
        #: After an election: the followers have not reported their log ends yet.
        self.is_new = False
        #: Number of missing bytes in the last batch of an answer.
        self.cut_bytes = 0
        self.closed = False
        self.polls = 0
        #: Whether the leader answers fetches.
        self.fetches = True
        self.ends_answered = 0

    def close(self) -> None:
        self.closed = True

    async def request(self, request: object, answer: object, **_: object) -> object:
        await asyncio.sleep(0)
        if isinstance(request, ListOffsetsRequest):
            self.ends_answered += 1
            code = ErrorCode.OFFSET_NOT_AVAILABLE if self.is_new else ErrorCode.NONE
            end = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=self.high_watermark)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(partitions=[end])])
        assert isinstance(request, FetchRequest)
        await eventually(lambda: self.fetches)
        self.polls += 1
        data = PartitionData(partition_index=0, high_watermark=self.high_watermark)
        at = request.topics[0].partitions[0].fetch_offset
        found = b"".join(self.batches[at : self.high_watermark])
        data.records = found[: len(found) - self.cut_bytes]
        self.cut_bytes = 0
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[data])])


class Reading:
    """A broker that follows the partition with these segments."""

    def __init__(self, leader: Leader) -> None:
        cluster = SimpleNamespace(
            partition_count=lambda topic: 1,
            partition=lambda tp: SimpleNamespace(leader=LEADER),
            is_alive=lambda broker: True,
            subscribe=lambda hear: lambda: None,
        )
        self.tasks: list[asyncio.Task[None]] = []

        async def connect(broker: BrokerId) -> Connection:
            leader.closed = False
            return cast(Connection, leader)

        self.metadata = RemoteMetadata(
            ME,
            cast(Any, SimpleNamespace(partitions=1)),
            cast(Any, cluster),
            connect=connect,
            lane=connect,
            on_event=lambda of: None,
            on_thread=on_thread,
            clock=ManualClock(),
            spawn=self._spawn,
        )
        self.metadata.assign(FIRST.id.of)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def __aenter__(self) -> "Reading":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.metadata.stop()
        await asyncio.gather(*self.tasks)

    async def reaches(self, condition: Callable[[], object]) -> None:
        await eventually(lambda: condition() or any(task.done() for task in self.tasks))
        assert not any(task.done() for task in self.tasks), "a reader that ends, ends the broker"

    async def reads_all(self) -> list[SegmentState]:
        await self.reaches(lambda: self.metadata.view(FIRST.id.of) is not None)
        view = self.metadata.view(FIRST.id.of)
        assert view is not None
        return [each.state for each in view.all()]


async def on_thread(work: Callable[[], Any]) -> Any:
    return work()


FINISHED = SegmentState.COPY_FINISHED
EVENTS = (FIRST, update(FIRST, FINISHED), SECOND, update(SECOND, FINISHED))


async def test_thousands_of_partitions_come_and_go_without_a_look_at_all_of_them_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker with 5000 of them in one LeaderAndIsr spent twenty seconds on nothing else."""
    computed = 0

    def counted(of: TierPartition, partitions: int) -> int:
        nonlocal computed
        computed += 1
        return metadata_partition(of, partitions)

    monkeypatch.setattr("barnabas.broker.features.tiered.metadata_topic.metadata_partition", counted)
    leader = Leader(written(*EVENTS))
    async with Reading(leader) as reading:
        others = [FIRST.id.of._replace(partition=number) for number in range(1, 500)]
        for of in others:
            reading.metadata.assign(of)
        for of in others:
            reading.metadata.unassign(of)
        assert computed < 10 * len(others)
        assert await reading.reads_all() == [FINISHED, FINISHED]
        assert reading.metadata.is_read(FIRST.id.of)
        reading.metadata.unassign(FIRST.id.of)
        assert not reading.metadata.is_read(FIRST.id.of)


async def test_end_reported_by_a_new_leader_is_not_final_until_it_knows_the_high_watermark() -> None:
    """Events above its high watermark may be committed, and describe segments that are only in the tier."""
    leader = Leader(written(*EVENTS))
    leader.is_new, leader.high_watermark = True, 2
    async with Reading(leader) as reading:
        await reading.reaches(lambda: leader.polls >= 2)
        assert reading.metadata.view(FIRST.id.of) is None
        leader.is_new, leader.high_watermark = False, 4
        assert await reading.reads_all() == [FINISHED, FINISHED]


async def test_a_batch_that_is_cut_is_asked_for_again() -> None:
    """Kafka's brokers cut the last batch of an answer."""
    leader = Leader(written(*EVENTS))
    leader.cut_bytes = 7
    async with Reading(leader) as reading:
        assert await reading.reads_all() == [FINISHED, FINISHED]


async def test_a_batch_that_was_written_as_nonsense_is_passed_over() -> None:
    """Otherwise any client that may write to the topic could end every broker that reads it."""
    builder = BatchBuilder(base_offset=2, leader_epoch=0, codec=1)
    builder.append(None, b"x" * 100, timestamp=0)
    nonsense = bytearray(builder.build())
    nonsense[70:90] = bytes(20)
    nonsense[17:21] = crc32c.crc32c(bytes(nonsense[21:])).to_bytes(4, "big")
    batches = written(FIRST, update(FIRST, FINISHED), SECOND, SECOND, update(SECOND, FINISHED))
    leader = Leader([*batches[:2], bytes(nonsense), *batches[3:]])
    async with Reading(leader) as reading:
        assert await reading.reads_all() == [FINISHED, FINISHED]
        assert reading.metadata.malformed == 1


async def test_bytes_that_are_not_what_was_written_are_read_again_and_pass_nothing_over() -> None:
    batches = written(*EVENTS)
    damaged = bytearray(batches[1])
    damaged[-1] ^= 1
    leader = Leader([batches[0], bytes(damaged), *batches[2:]])
    async with Reading(leader) as reading:
        await reading.reaches(lambda: leader.polls >= 3)
        assert reading.metadata.view(FIRST.id.of) is None
        assert reading.metadata._partitions[0].position == 1
        leader.batches = batches
        assert await reading.reads_all() == [FINISHED, FINISHED]


async def test_caught_up_broker_has_a_view() -> None:
    """A new leader checks its first segments only once: without a view it would find nothing to do."""
    leader = Leader(written(*EVENTS))
    leader.is_new = True
    async with Reading(leader) as reading:
        partition = reading.metadata._partitions[0]
        await reading.reaches(lambda: partition.position == 4)
        assert not partition.caught_up, "the end of the partition is unknown"
        leader.is_new, leader.fetches = False, False
        with pytest.raises(MetadataUnavailable, match="is being read again"):
            await reading.metadata.catch_up(FIRST.id.of)
        leader.fetches = True
        assert await reading.reads_all() == [FINISHED, FINISHED]
        await reading.metadata.catch_up(FIRST.id.of)


async def test_a_log_that_ends_before_its_former_end_is_asked_for_its_end_again() -> None:
    leader = Leader(written(*EVENTS))
    leader.fetches = False
    async with Reading(leader) as reading:
        await reading.reaches(lambda: leader.ends_answered)
        leader.batches, leader.high_watermark = leader.batches[:2], 2
        leader.fetches = True
        assert await reading.reads_all() == [FINISHED]
        assert leader.ends_answered == 2

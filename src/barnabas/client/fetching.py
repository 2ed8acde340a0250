"""Build fetch requests and interpret the responses. Without I/O, for both shells.

Raw batches are views of the response (nothing is copied); `Fetched.records()` decodes them.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED, READ_UNCOMMITTED
from barnabas.client.core import DATA, ClientCore
from barnabas.client.errors import BrokerRefused, ClientError, check
from barnabas.client.image import NO_TOPIC_ID, ClusterImage
from barnabas.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from barnabas.wire.record_batch import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD, BatchHeader, check_crc, iter_batches
from barnabas.wire.records import ControlType, Record, control_type, iter_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings with Kafka's names and defaults."""

    isolation_level: int = READ_UNCOMMITTED
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    fetch_max_wait_ms: int = 500
    #: `earliest`, `latest`, or `none`, which makes an offset out of range an error.
    auto_offset_reset: str = "latest"
    check_crcs: bool = True
    #: With a rack, a `Consumer` reads from the replica that the leader names (KIP-392). Single fetches stay with the leader.
    client_rack: str = ""
    retry_backoff_ms: int = 100


_LENGTH: Final = struct.Struct(">i")


def whole_batches_end(data: memoryview | bytes) -> int:
    """Return where the whole batches end. The size limit of a fetch may cut the last batch."""
    pos, end = 0, len(data)
    while end - pos >= HEADER_SIZE:
        after = pos + LOG_OVERHEAD + int(_LENGTH.unpack_from(data, pos + LENGTH_AT)[0])
        if not pos < after <= end:
            break
        pos = after
    return pos


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one fetch for one partition."""

    partition: TopicPartition
    #: Whole batches, perhaps with a cut one at the end. The first may begin before `position`.
    data: memoryview | bytes
    #: The fetch asked for records from this offset on.
    position: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    #: How long a broker that enforces a quota mutes this client; the response then has no records.
    throttle_time_ms: int = 0
    #: The broker to read from instead (KIP-392); the response then has no records. -1: this broker.
    preferred_replica: int = -1

    def batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the place in `data` and the header of each whole batch."""
        return iter_batches(self.data, 0, whole_batches_end(self.data))

    def records(self, *, isolation_level: int = READ_UNCOMMITTED, check_crcs: bool = True) -> Iterator[Record]:
        """Yield the records for the application: no control records, and with READ_COMMITTED no aborted ones."""
        for pos, header in self.visible_batches(isolation_level=isolation_level, check_crcs=check_crcs):
            for record in iter_records(self.data, pos, header):
                if record.offset >= self.position:
                    yield record

    def visible_batches(
        self, *, isolation_level: int = READ_UNCOMMITTED, check_crcs: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield place and header of each batch whose records the application may see."""
        aborted = sorted(self.aborted, key=lambda entry: entry.first_offset)
        in_aborted: set[int] = set()
        for pos, header in self.batches():
            if check_crcs:
                check_crc(self.data, pos, header)
            if isolation_level == READ_COMMITTED:
                while aborted and aborted[0].first_offset <= header.last_offset:
                    in_aborted.add(aborted.pop(0).producer_id)
                if header.is_control:
                    marker = next(iter_records(self.data, pos, header), None)
                    if marker is not None and control_type(marker.key) is ControlType.ABORT:
                        in_aborted.discard(header.producer_id)
                    continue
                if header.is_transactional and header.producer_id in in_aborted:
                    continue
            elif header.is_control:
                continue
            yield pos, header

    @property
    def next_position(self) -> int:
        """Return the offset after the last whole batch, whatever the batch holds."""
        position = self.position
        for _, header in self.batches():
            position = header.last_offset + 1
        return max(position, self.position)


def fetch_request(
    config: ConsumerConfig, positions: Mapping[TopicPartition, int], image: ClusterImage, *, rack_id: str = ""
) -> FetchRequest:
    """`rack_id` is set only by consumers that follow a leader to another replica."""
    by_topic: dict[str, list[FetchPartition]] = {}
    for (topic, index), offset in positions.items():
        by_topic.setdefault(topic, []).append(
            FetchPartition(
                partition=index,
                # KIP-320: a broker that is no longer leader must not answer from a log that is behind.
                current_leader_epoch=image.leader_epoch_of(TopicPartition(topic, index)),
                fetch_offset=offset,
                partition_max_bytes=config.partition_max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=config.isolation_level,
        topics=[
            FetchTopic(topic=topic, topic_id=image.topic_id(topic), partitions=parts)
            for topic, parts in by_topic.items()
        ],
        rack_id=rack_id,
    )


def fetched_of(
    request: FetchRequest, response: FetchResponse, positions: Mapping[TopicPartition, int]
) -> Iterator[tuple[ErrorCode, Fetched]]:
    """Yield the result of each partition, with its error."""
    names = {topic.topic_id: topic.topic for topic in request.topics if topic.topic_id != NO_TOPIC_ID}
    for topic in response.responses:
        for part in topic.partitions:
            partition = TopicPartition(topic.topic or names.get(topic.topic_id, ""), part.partition_index)
            if partition in positions:
                yield ErrorCode(part.error_code), _fetched(partition, positions[partition], part, response)


def _fetched(partition: TopicPartition, position: int, part: PartitionData, response: FetchResponse) -> Fetched:
    records = part.records if part.records is not None else b""
    assert isinstance(records, bytes | memoryview)
    return Fetched(
        partition=partition,
        data=records,
        position=position,
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        aborted=tuple(part.aborted_transactions or ()),
        throttle_time_ms=response.throttle_time_ms,
        preferred_replica=part.preferred_read_replica,
    )


async def fetch_from(
    cluster: ClientCore,
    leader: int,
    config: ConsumerConfig,
    positions: Mapping[TopicPartition, int],
    *,
    purpose: str = DATA,
) -> list[tuple[ErrorCode, Fetched]]:
    """Send one request to one broker; return the result of each partition, with its error."""
    request, response = await _ask(cluster, leader, config, positions, purpose=purpose)
    return list(fetched_of(request, response, positions))


async def _ask(
    cluster: ClientCore, leader: int, config: ConsumerConfig, positions: Mapping[TopicPartition, int], *, purpose: str
) -> tuple[FetchRequest, FetchResponse]:
    request = fetch_request(config, positions, cluster.image)
    timeout_ms = cluster.config.request_timeout_ms + config.fetch_max_wait_ms
    response = await cluster.ask(leader, request, FetchResponse, timeout_ms=timeout_ms, purpose=purpose)
    check(response.error_code)
    return request, response


async def fetch_one(cluster: ClientCore, config: ConsumerConfig, partition: TopicPartition, offset: int) -> Fetched:
    """Fetch from the leader of one partition; empty if nothing came in time. OFFSET_OUT_OF_RANGE is raised."""
    positions = {partition: offset}

    async def once() -> Fetched:
        while True:
            (leader,) = await cluster.leaders(positions)
            request, response = await _ask(cluster, leader, config, positions, purpose=DATA)
            for code, fetched in fetched_of(request, response, positions):
                check(code, str(partition))
                return fetched
            if not response.throttle_time_ms:
                raise BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no answer for {partition}")
            # While a broker enforces a quota it answers without partitions. That is no failure, however often it happens.
            await cluster.io.pause(response.throttle_time_ms / 1000)

    return await cluster.retrying(f"fetch of {partition}", once)


async def fetch_some(
    cluster: ClientCore, config: ConsumerConfig, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Fetched]:
    """Send one request to each leader. Partitions without data or with an error are left out: `fetch_one` raises the error."""
    by_leader = await cluster.leaders(positions)
    answers = await cluster.io.together(
        [
            fetch_from(cluster, leader, config, {each: positions[each] for each in partitions})
            for leader, partitions in by_leader.items()
        ]
    )
    return {
        fetched.partition: fetched
        for answer in answers
        if not isinstance(answer, ClientError)
        for code, fetched in answer
        if code is ErrorCode.NONE and len(fetched.data)
    }

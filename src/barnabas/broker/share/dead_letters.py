"""Copies records that are given up to the dead-letter topic of their group (KIP-1191), as Kafka 4.4 does.

Owner: the event loop. The group's setting `errors.deadletterqueue.topic.name` names the topic. The topic's own setting
`errors.deadletterqueue.group.enable` must allow it: otherwise a user with rights on a group alone could write to any topic. A
record that cannot be copied is given up all the same, with an error in the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NamedTuple

from barnabas.base.backoff import Backoff
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BarnabasError, ErrorCode, Malformed, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.words import READ_UNCOMMITTED
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchKey
from barnabas.broker.replication.fetches import Fetches
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.share.metrics import DeadLetterCounts
from barnabas.broker.share.settings import ShareSettings
from barnabas.broker.storage.file_handle import FileRange
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_build import BatchBuilder
from barnabas.wire.record_decode import iter_records

log = logging.getLogger(__name__)

REJECTED: Final = "Offset rejected by client."
DELIVERED_TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."

#: Settings of a topic that is created for dead letters.
_NEW_TOPIC: Final = {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
_INTERNAL_PREFIX: Final = "__"
#: Kafka's retries.
ATTEMPTS_MAX: Final = 5
_BACKOFF_S: Final = 1.0
_BACKOFF_MAX_S: Final = 30.0
_JITTER: Final = 0.2
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        # The settings of the topic could not be read, because the ZooKeeper session of this broker has expired.
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
#: Bytes of the log that are read, and decompressed, at a time to copy the content of records.
COPY_BYTES: Final = 1024 * 1024
#: Size of a batch without compression beyond which its records are not copied.
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024


class DeadLetters(NamedTuple):
    """Records that were given up for the same reason. `last` is inclusive."""

    first: int
    last: int
    delivery_count: int
    reason: str


class Source(NamedTuple):
    """The share partition that gives records up."""

    group_id: str
    topic_id: bytes
    tp: TopicPartition
    #: `errors.deadletterqueue.topic.name`
    topic: str
    #: `errors.deadletterqueue.copy.record.enable`
    copies_records: bool


class _Content(NamedTuple):
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHost:
    """The parts of a broker that dead letters use."""

    metadata: MetadataCache
    fetches: Fetches
    #: Sends a request to a broker, perhaps this one; raises a `BarnabasError` if no answer comes.
    produce: Callable[[BrokerId, ProduceRequest], Awaitable[ProduceResponse]]
    create_topic: Callable[[str, int, int, Mapping[str, str]], Awaitable[ErrorCode]]
    #: Reads the settings of topics that may have no replica on this broker.
    load_settings: Callable[[Iterable[str]], Awaitable[None]]
    log_config: Callable[[str], LogConfig]
    settings: Callable[[], ShareSettings]
    timeout_ms: Callable[[], int]
    now_ms: Callable[[], int]
    on_thread: OnThread
    chance: Random


class DeadLetterTopics:
    def __init__(self, host: DeadLetterHost, counts: DeadLetterCounts) -> None:
        self._host = host
        self._counts = counts

    async def send(self, source: Source, letters: Sequence[DeadLetters], *, is_wanted: Callable[[], bool]) -> None:
        """Copy the records to the dead-letter topic. Returns when that is done, or cannot be done: the log has the reason."""
        try:
            await self._send(source, letters, is_wanted)
        except Refused as refused:
            if not is_wanted():
                return  # the next leader copies them
            self._counts.failed.add()
            log.error(
                "[group %s] records %d to %d of %s are given up without a copy in the dead-letter topic '%s': %s",
                source.group_id,
                letters[0].first,
                letters[-1].last,
                source.tp,
                source.topic,
                refused,
            )

    async def _send(self, source: Source, letters: Sequence[DeadLetters], is_wanted: Callable[[], bool]) -> None:
        await self._check(source, is_wanted)
        for each in letters:
            offset = each.first
            while offset <= each.last and is_wanted():
                contents: dict[int, _Content] = {}
                end = each.last + 1
                if source.copies_records:
                    contents, end = await self._contents(source, offset, each.last)
                for batch, count in self._batches(source, each, range(offset, end), contents):
                    await self._retried(partial(self._write, source, batch), is_wanted)
                    self._counts.records.add(count)
                offset = end

    # -- the topic ----------------------------------------------------------------------------------------------------

    async def _check(self, source: Source, is_wanted: Callable[[], bool]) -> None:
        """Raise `Refused` if the group must not use the topic."""
        topic, settings = source.topic, self._host.settings()
        if topic.startswith(_INTERNAL_PREFIX):
            raise Refused(ErrorCode.INVALID_CONFIG, f"a dead-letter topic cannot begin with {_INTERNAL_PREFIX}")
        if not topic.startswith(settings.dead_letter_prefix):
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"its name must begin with '{settings.dead_letter_prefix}' (errors.deadletterqueue.topic.name.prefix)",
            )
        if self._host.metadata.topic(topic) is None:
            if not settings.creates_dead_letter_topics:
                raise Refused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "the topic does not exist: create it with errors.deadletterqueue.group.enable=true, or set "
                    "errors.deadletterqueue.auto.create.topics.enable on the brokers",
                )
            return
        # Changes reach every broker; but only brokers with a replica know the settings with which a topic was created.
        await self._retried(lambda: self._host.load_settings([topic]), is_wanted)
        if not self._host.log_config(topic).errors_deadletterqueue_group_enable:
            raise Refused(ErrorCode.INVALID_CONFIG, "set errors.deadletterqueue.group.enable=true on the topic")

    async def _partition_of(self, source: Source) -> tuple[BrokerId, int]:
        """Return the leader and the number of the partition to write to."""
        metadata = self._host.metadata
        if metadata.topic(source.topic) is None:
            code = await self._host.create_topic(source.topic, -1, -1, _NEW_TOPIC)
            if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise Refused(code, "the topic cannot be created")
            await wait_until_shown(
                metadata, [source.topic], lambda topic: metadata.topic(topic) is not None, timeout_s=_BACKOFF_S
            )
        count = metadata.partition_count(source.topic)
        partition = source.tp.partition % count if count else 0
        known = metadata.partition(TopicPartition(source.topic, partition))
        if known is None or known.leader < 0:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, "the topic's partition has no leader")
        return BrokerId(known.leader), partition

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _retried(self, attempt: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]) -> None:
        backoff = Backoff(_BACKOFF_S, _BACKOFF_MAX_S, lambda: self._host.chance.uniform(1 - _JITTER, 1 + _JITTER))
        while True:
            try:
                await attempt()
                return
            except Refused as refused:
                pause_s = backoff.failed()
                if refused.code not in _RETRIABLE or backoff.failures == ATTEMPTS_MAX or not is_wanted():
                    raise
            await asyncio.sleep(pause_s)

    async def _write(self, source: Source, batch: bytes) -> None:
        leader, partition = await self._partition_of(source)
        topic_id = self._host.metadata.topic_id(source.topic)
        data = TopicProduceData(
            name=source.topic,
            topic_id=topic_id,
            partition_data=[PartitionProduceData(index=partition, records=batch)],
        )
        request = ProduceRequest(acks=-1, timeout_ms=self._host.timeout_ms(), topic_data=[data])
        self._counts.requests.add()
        try:
            response = await self._host.produce(leader, request)
        except BarnabasError as error:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {leader} did not answer: {error}") from error
        for answer in (each for topic in response.responses for each in topic.partition_responses):
            if answer.error_code != ErrorCode.NONE:
                code = ErrorCode(answer.error_code)
                raise Refused(code, f"broker {leader} refused the records: {answer.error_message or code.name}")

    def _batches(
        self, source: Source, letters: DeadLetters, offsets: Iterable[int], contents: Mapping[int, _Content]
    ) -> Iterator[tuple[bytes, int]]:
        """Yield batches of dead letters, with the number of their records: as large as the topic takes."""
        bytes_max = self._host.log_config(source.topic).max_message_bytes
        builder = BatchBuilder()
        for offset in offsets:
            content = contents.get(offset, _Content(None, None))
            headers = _headers(source, letters, offset)
            size = sum(len(part) for part in (*content, *(value for _, value in headers)) if part is not None)
            if len(builder) and builder.size_bytes + size + _HEADERS_BYTES_MAX > bytes_max:
                yield builder.build(), len(builder)
                builder = BatchBuilder()
            builder.append(content.key, content.value, timestamp=self._host.now_ms(), headers=headers)
        if len(builder):
            yield builder.build(), len(builder)

    # -- copying ------------------------------------------------------------------------------------------------------

    async def _contents(self, source: Source, first: int, last: int) -> tuple[dict[int, _Content], int]:
        """Return the content of records from `first` on, as far as one read has them, and the offset after them.

        Records that are gone, or cannot be read, have no content: their dead letters have the headers alone.
        """
        done: asyncio.Future[list[PartitionRead]] = asyncio.get_running_loop().create_future()
        key = FetchKey(source.topic_id, source.tp.partition)
        params = FetchParams(
            replica_id=-1,
            replica_epoch=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=COPY_BYTES,
            isolation_level=READ_UNCOMMITTED,
            client_rack="",
            may_read_from_follower=False,
        )
        wanted = CachedPartition(key, first, COPY_BYTES, -1, -1, -1)
        waiting = self._host.fetches.fetch(params, [(wanted, source.tp)], done.set_result)
        try:
            [read] = await done
        except asyncio.CancelledError:
            if waiting is not None:
                waiting.cancel()
            raise
        try:
            if read.error or not read.ranges:
                log.warning(
                    "[group %s] dead letters of %s from offset %d on have no content: %s",
                    source.group_id,
                    source.tp,
                    first,
                    read.error.name,
                )
                return {}, last + 1
            ranges = read.ranges
            return await self._host.on_thread(lambda: _decode(ranges, first, last))
        except (OSError, Malformed) as error:
            log.warning(
                "[group %s] dead letters of %s from offset %d on have no content: %s",
                source.group_id,
                source.tp,
                first,
                error,
            )
            return {}, last + 1
        finally:
            read.release()


#: Room for the names of a dead letter's headers and the lengths in its record.
_HEADERS_BYTES_MAX: Final = 256


def _headers(source: Source, letters: DeadLetters, offset: int) -> tuple[tuple[str, bytes], ...]:
    return (
        ("__dlq.errors.topic", source.tp.topic.encode()),
        ("__dlq.errors.partition", b"%d" % source.tp.partition),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.group", source.group_id.encode()),
        ("__dlq.errors.delivery.count", b"%d" % letters.delivery_count),
        ("__dlq.errors.message", letters.reason.encode()),
    )


def _decode(ranges: Sequence[FileRange], first: int, last: int) -> tuple[dict[int, _Content], int]:
    """Decode the records from `first` to `last`, as far as the ranges have them. Any thread."""
    contents: dict[int, _Content] = {}
    end = first
    for part in ranges:
        data = part.read()
        for position, header in iter_batches(data):
            if header.base_offset > last:
                return contents, last + 1
            if not header.is_control and header.last_offset >= first:
                try:
                    for record in iter_records(data, position, header, max_decompressed_bytes=INFLATED_BYTES_MAX):
                        if first <= record.offset <= last:
                            contents[record.offset] = _Content(
                                None if record.key is None else bytes(record.key),
                                None if record.value is None else bytes(record.value),
                            )
                except Malformed as error:
                    log.warning(
                        "[dead letters] the records of a batch have no content in the dead-letter topic: %s", error
                    )
            end = max(end, min(header.last_offset, last) + 1)
    return contents, max(end, first + 1)

"""A consumer: fetches from the leaders of its partitions, side by side, and decodes what it is asked to decode.

Owner: the event loop. One fetch per leader is under way at any time, so an idle leader's long poll holds back nobody.
Raw batches are views of the response (nothing is copied); `records()` decodes them.
"""

import asyncio
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from barnabas.client.admin.partitions import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from barnabas.client.cluster import Cluster
from barnabas.client.errors import BrokerRefused, ClientError, check, error_code
from barnabas.core.errors import RETRIABLE, ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from barnabas.protocol.record_batch import (
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    BatchHeader,
    check_crc,
    iter_batches,
)
from barnabas.protocol.records import ControlType, Record, control_type, iter_records

#: What `auto.offset.reset` may say, and the time that ListOffsets knows it by.
RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """By Kafka's names and with Kafka's defaults."""

    isolation_level: int = READ_UNCOMMITTED
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    fetch_max_wait_ms: int = 500
    #: `earliest`, `latest`, or `none`: then an offset out of range is an error.
    auto_offset_reset: str = "latest"
    check_crcs: bool = True
    client_rack: str = ""
    retry_backoff_ms: int = 100


_LENGTH: Final = struct.Struct(">i")


def whole_batches_end(data: memoryview | bytes) -> int:
    """A broker cuts the last batch where the fetch's size ends: the place of that batch, or the end of `data`."""
    pos, end = 0, len(data)
    while end - pos >= HEADER_SIZE:
        after = pos + LOG_OVERHEAD + int(_LENGTH.unpack_from(data, pos + LENGTH_AT)[0])
        if not pos < after <= end:
            break
        pos = after
    return pos


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch brought of one partition."""

    partition: TopicPartition
    #: Whole batches (the last may be cut); the first may begin before `position`.
    data: memoryview | bytes
    #: Records below it were not asked for.
    position: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    #: A broker that holds a client to its quota answers with nothing, and says for how long.
    throttle_time_ms: int = 0

    def batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """Place in `data` and header of each whole batch."""
        return iter_batches(self.data, 0, whole_batches_end(self.data))

    def records(self, *, isolation_level: int = READ_UNCOMMITTED, check_crcs: bool = True) -> Iterator[Record]:
        """What an application sees: no control records, and with READ_COMMITTED none of aborted transactions."""
        for pos, header in self.visible_batches(isolation_level=isolation_level, check_crcs=check_crcs):
            for record in iter_records(self.data, pos, header):
                if record.offset >= self.position:
                    yield record

    def visible_batches(
        self, *, isolation_level: int = READ_UNCOMMITTED, check_crcs: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Place and header of each batch whose records an application sees."""
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
        """Past the last whole batch, whatever it held."""
        position = self.position
        for _, header in self.batches():
            position = header.last_offset + 1
        return max(position, self.position)


@dataclass(slots=True)
class _Position:
    offset: int
    #: Not fetched while somebody seeks it or its offset is being looked up.
    generation: int = 0


@dataclass(slots=True)
class Consumer:
    """Assign partitions with their offsets, then `poll`. `async with` ends what is under way."""

    cluster: Cluster
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    _positions: dict[TopicPartition, _Position] = field(default_factory=dict)
    #: By leader: the fetch that is under way there.
    _fetches: "dict[int, asyncio.Task[list[Fetched]]]" = field(default_factory=dict)
    _generation: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_fetches()

    # -- positions ------------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the partitions; answers for others that are under way will be dropped."""
        self._generation += 1
        self._positions = {partition: _Position(offset, self._generation) for partition, offset in offsets.items()}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._generation += 1
        self._positions[partition] = _Position(offset, self._generation)

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition].offset

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._positions)

    async def offsets_by_reset(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where `auto.offset.reset` says to begin."""
        time = RESETS.get(self.config.auto_offset_reset)
        wanted = list(partitions)
        if time is None:
            raise BrokerRefused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{', '.join(map(str, wanted))}: no valid offset, and auto.offset.reset is {self.config.auto_offset_reset}",
            )
        found = await list_offsets(
            self.cluster, dict.fromkeys(wanted, time), isolation_level=self.config.isolation_level
        )
        for partition, listed in found.items():
            check(listed.error, str(partition))
        return {partition: listed.offset for partition, listed in found.items()}

    # -- fetching -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int) -> list[Fetched]:
        """What has arrived; empty when the time is up. Positions move past what is returned."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while self._positions:
            await self._start_fetches()
            left_s = deadline_s - loop.time()
            if not self._fetches:
                # No leader at the moment, or a back-off: look again soon.
                pause_s = min(self.config.retry_backoff_ms / 1000, max(left_s, 0))
                await asyncio.sleep(pause_s)
            else:
                await asyncio.wait(self._fetches.values(), timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
            fetched = self._collect()
            if fetched or loop.time() >= deadline_s:
                return fetched
        await asyncio.sleep(max(deadline_s - loop.time(), 0))
        return []

    async def _start_fetches(self) -> None:
        idle = [partition for partition in self._positions if self._leader_is_idle(partition)]
        if not idle:
            return
        try:
            by_leader = await self.cluster.leaders(idle)
        except ClientError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
            return
        for leader, partitions in by_leader.items():
            if leader not in self._fetches:
                self._fetches[leader] = asyncio.create_task(self._fetch(leader, partitions), name=f"fetch-{leader}")

    def _leader_is_idle(self, partition: TopicPartition) -> bool:
        leader = self.cluster.image.leader_of(partition)
        return leader < 0 or leader not in self._fetches

    def _collect(self) -> list[Fetched]:
        """The results of fetches that have ended, without those of partitions that were moved meanwhile."""
        results: list[Fetched] = []
        for leader, task in list(self._fetches.items()):
            if not task.done():
                continue
            del self._fetches[leader]
            for fetched in task.result():
                position = self._positions.get(fetched.partition)
                if position is not None and position.offset == fetched.position:
                    position.offset = fetched.next_position
                    results.append(fetched)
        return results

    async def _fetch(self, leader: int, partitions: list[TopicPartition]) -> list[Fetched]:
        positions = {p: self._positions[p].offset for p in partitions if p in self._positions}
        try:
            response = await self.cluster.ask(
                leader,
                self._request(positions),
                FetchResponse,
                timeout_ms=self.cluster.config.request_timeout_ms + self.config.fetch_max_wait_ms,
            )
            check(response.error_code)
        except ClientError as error:
            if not error.retriable:
                raise
            self.cluster.forget_leaders({partition.topic for partition in partitions})
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
            return []
        return await self._results(response, positions)

    def _request(self, positions: Mapping[TopicPartition, int]) -> FetchRequest:
        by_topic: dict[str, list[FetchPartition]] = {}
        for (topic, index), offset in positions.items():
            by_topic.setdefault(topic, []).append(
                FetchPartition(
                    partition=index,
                    # KIP-320: a broker that no longer leads must not answer from a log that is behind.
                    current_leader_epoch=self.cluster.image.leader_epoch_of(TopicPartition(topic, index)),
                    fetch_offset=offset,
                    partition_max_bytes=self.config.partition_max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=self.config.fetch_max_wait_ms,
            min_bytes=self.config.fetch_min_bytes,
            max_bytes=self.config.fetch_max_bytes,
            isolation_level=self.config.isolation_level,
            topics=[FetchTopic(topic=topic, partitions=parts) for topic, parts in by_topic.items()],
            rack_id=self.config.client_rack,
        )

    async def _results(self, response: FetchResponse, positions: Mapping[TopicPartition, int]) -> list[Fetched]:
        results: list[Fetched] = []
        for topic in response.responses:
            for part in topic.partitions:
                partition = TopicPartition(topic.topic, part.partition_index)
                code = error_code(part.error_code)
                if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    await self._reset(partition, positions[partition])
                elif code in RETRIABLE:
                    self.cluster.forget_leaders([partition.topic])
                    await asyncio.sleep(self.config.retry_backoff_ms / 1000)
                elif code is not ErrorCode.NONE:
                    raise BrokerRefused(code, str(partition))
                elif part.records:
                    assert isinstance(part.records, bytes | memoryview)
                    results.append(
                        Fetched(
                            partition=partition,
                            data=part.records,
                            position=positions[partition],
                            high_watermark=part.high_watermark,
                            last_stable_offset=part.last_stable_offset,
                            log_start_offset=part.log_start_offset,
                            aborted=tuple(part.aborted_transactions or ()),
                        )
                    )
        return results

    async def _reset(self, partition: TopicPartition, at: int) -> None:
        offsets = await self.offsets_by_reset([partition])
        # Somebody may have sought it meanwhile.
        if partition in self._positions and self._positions[partition].offset == at:
            self.seek(partition, offsets[partition])

    async def _stop_fetches(self) -> None:
        tasks = list(self._fetches.values())
        self._fetches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

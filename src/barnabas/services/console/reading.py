"""Records of a topic, by offsets: a page, a search, or new records as they arrive.

Pages and searches do not wait for new records: ListOffsets gives the ends before the first fetch. Fetches have separate
connections, so that a large answer does not delay other requests. Limits count decompressed records: a batch of some kilobytes
may hold hundreds of megabytes. Owner: the event loop.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_UNCOMMITTED
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import ConsumerConfig, Fetched, fetch_from
from barnabas.services.console.errors import bad_request
from barnabas.services.console.offsets import list_offsets
from barnabas.wire.records import Record

if TYPE_CHECKING:
    from barnabas.services.console.cluster import ConsoleCluster

#: Limits of one fetch, and (below) of one page.
_FETCH: Final = ConsumerConfig(
    fetch_max_wait_ms=0, fetch_min_bytes=0, fetch_max_bytes=4 * 1024 * 1024, partition_max_bytes=512 * 1024
)
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
#: How often a page looks further back if there are few records among the offsets (compaction, transactions).
_ROUNDS_MAX: Final = 8
#: Offsets per partition in one round of a search.
_SEARCH_OFFSETS: Final = 2_000
#: Limit of the bytes that one round reads; it may exceed it by one fetch.
_SEARCH_BYTES_MAX: Final = 4 * 1024 * 1024
_TRIES: Final = 4
#: A batch is decompressed as a whole, and may take `DEFAULT_MAX_DECOMPRESSED_BYTES`: only two at a time.
_DECODERS: Final = ThreadPoolExecutor(2, thread_name_prefix="console-decode")
#: Memory of a record without its content.
_RECORD_BYTES: Final = 100

Read = tuple[int, Record]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one partition: the log start, and the offset after the last readable record."""

    start: int
    end: int


@dataclass(slots=True)
class Source:
    """A topic, or some of its partitions, and the settings for reading it."""

    cluster: "ConsoleCluster"
    topic: str
    partitions: list[TopicPartition]
    isolation_level: int = READ_UNCOMMITTED
    #: Connections are shared by purpose: each reader that waits needs its own.
    purpose: str = "messages"
    #: Bytes of the records so far, decompressed.
    bytes_read: int = 0

    async def bounds(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds of partitions that have a leader."""
        starts, ends = await asyncio.gather(
            list_offsets(self.cluster, dict.fromkeys(self.partitions, EARLIEST)),
            list_offsets(self.cluster, dict.fromkeys(self.partitions, LATEST), isolation_level=self.isolation_level),
        )
        return {
            each: Bounds(starts[each][0], ends[each][0]) for each in self.partitions if each in starts and each in ends
        }

    async def at_time(self, timestamp_ms: int, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
        """Return the first offset whose record is not older; the end if there is none."""
        found = await list_offsets(self.cluster, dict.fromkeys(bounds, timestamp_ms))
        return {each: found[each][0] if each in found and found[each][0] >= 0 else bounds[each].end for each in bounds}

    async def fetch(
        self, positions: Mapping[TopicPartition, int], config: ConsumerConfig = _FETCH
    ) -> dict[TopicPartition, Fetched]:
        """Fetch once from each leader, concurrently. A partition whose offset is out of range is left out."""
        config = replace(config, isolation_level=self.isolation_level)
        left, found = dict(positions), dict[TopicPartition, Fetched]()
        for attempt in range(_TRIES):
            outcomes = await self._fetch_once(left, config)
            found.update(outcomes)
            left = {each: offset for each, offset in left.items() if each not in found}
            if not left:
                break
            await asyncio.sleep(0.1 * attempt)
            await self.cluster.client.refresh([self.topic])
        return found

    async def _fetch_once(
        self, positions: Mapping[TopicPartition, int], config: ConsumerConfig
    ) -> dict[TopicPartition, Fetched]:
        client = self.cluster.client
        if any(client.image.leader_of(each) < 0 for each in positions):
            await client.refresh([self.topic])
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for each, offset in positions.items():
            if (leader := client.image.leader_of(each)) >= 0:
                by_leader.setdefault(leader, {})[each] = offset
        answers = await client.io.together(
            [fetch_from(client, leader, config, some, purpose=self.purpose) for leader, some in by_leader.items()]
        )
        found: dict[TopicPartition, Fetched] = {}
        for answer in answers:
            if isinstance(answer, ClientError):
                if not answer.retriable:
                    raise answer
                continue
            for code, fetched in answer:
                if code is ErrorCode.NONE:
                    found[fetched.partition] = fetched
                elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    found[fetched.partition] = replace(fetched, data=b"", position=-1)
                elif not (refused := BrokerRefused(code, str(fetched.partition))).retriable:
                    raise refused
        return found

    async def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], bytes_max: int
    ) -> tuple[list[Read], dict[TopicPartition, int]]:
        """Return the records of these ranges, and the position in each partition: below the end of its range if there were too
        many."""
        positions = {each: start for each, (start, end) in ranges.items() if start < end}
        reached = {each: end for each, (_, end) in ranges.items()}
        records: list[Read] = []
        began = self.bytes_read
        while positions:
            fetched = await self.fetch(positions)
            for each in list(positions):
                answer = fetched.get(each)
                if answer is None or answer.position < 0:
                    del positions[each]
                    continue
                end = ranges[each][1]
                found, after = await self.decoded(answer, end, bytes_max - (self.bytes_read - began))
                records += [(each.partition, record) for record in found]
                if after >= end or after == positions[each]:
                    reached[each] = end
                    del positions[each]
                else:
                    positions[each] = after
                if self.bytes_read - began > bytes_max:
                    break
            if self.bytes_read - began > bytes_max:
                reached.update(positions)
                break
        return records, reached

    async def decoded(self, fetched: Fetched, end: float, bytes_max: int) -> tuple[list[Record], int]:
        """Return the records below `end`, until they have more than `bytes_max`, and the position after them."""
        loop = asyncio.get_running_loop()
        records, after, size = await loop.run_in_executor(
            _DECODERS, _decoded, fetched, self.isolation_level, end, bytes_max
        )
        self.bytes_read += size
        return records, after


def _decoded(fetched: Fetched, isolation_level: int, end: float, bytes_max: int) -> tuple[list[Record], int, int]:
    """Return the records, the position after them, and their bytes."""
    records: list[Record] = []
    size = 0
    for record in fetched.records(isolation_level=isolation_level):
        if record.offset >= end:
            return records, record.offset, size
        if size > bytes_max and records:
            return records, records[-1].offset + 1, size
        records.append(record)
        size += bytes_of(record)
    return records, fetched.next_position, max(size, len(fetched.data))


def bytes_of(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


@dataclass(slots=True)
class Page:
    #: In the order of display.
    records: list[Read]
    #: Start of the next page, by partition; empty at the end.
    cursor: dict[int, int]
    bounds: dict[TopicPartition, Bounds]


def _share(count: int, partitions: int) -> int:
    """Return how many records to read per partition: all may be in one, but hardly with hundreds of partitions."""
    return count if partitions <= 8 else math.ceil(4 * count / partitions) + 1


async def newest_first(source: Source, count: int, before: Mapping[int, int] | None = None) -> Page:
    """Return the last records (before these offsets), the newest first."""
    bounds = await source.bounds()
    tops = {
        each: min(bound.end, max(before.get(each.partition, bound.end), bound.start)) if before else bound.end
        for each, bound in bounds.items()
    }
    lows = dict(tops)
    open_ends = [each for each in bounds if tops[each] > bounds[each].start]
    share = _share(count, len(open_ends))
    found: list[Read] = []
    for _ in range(_ROUNDS_MAX):
        ranges = {each: (max(bounds[each].start, lows[each] - share), lows[each]) for each in open_ends}
        records, reached = await source.read(ranges, PAGE_BYTES_MAX)
        if share > 1 and any(reached[each] < end for each, (_, end) in ranges.items()):
            share = max(share // 8, 1)  # large records: the newest ones did not fit
            continue
        found += records
        for each, (start, end) in ranges.items():
            if reached[each] >= end:  # else its record is on the next page: those of other partitions were large
                lows[each] = start
        open_ends = [each for each in open_ends if lows[each] > bounds[each].start]
        if len(found) >= count or not open_ends or source.bytes_read > PAGE_BYTES_MAX:
            break
        share *= 4
    found.sort(key=_age, reverse=True)
    shown = found[:count]
    cursor = {each.partition: lows[each] for each in bounds}
    for partition in cursor:
        left_out = [record.offset for p, record in found[count:] if p == partition]
        if left_out:
            cursor[partition] = max(left_out) + 1
    starts = {each.partition: bound.start for each, bound in bounds.items()}
    has_more = any(offset > starts[partition] for partition, offset in cursor.items())
    return Page(shown, cursor if has_more else {}, bounds)


async def oldest_first(source: Source, count: int, positions: Mapping[int, int] | None = None) -> Page:
    """Return records from these offsets (None: from the start) on, the oldest first."""
    bounds = await source.bounds()
    at = {
        each: min(max(positions.get(each.partition, bound.start), bound.start), bound.end)
        if positions is not None
        else bound.start
        for each, bound in bounds.items()
    }
    share = _share(count, sum(at[each] < bound.end for each, bound in bounds.items()))
    found: list[Read] = []
    for _ in range(_ROUNDS_MAX):
        ranges = {each: (at[each], min(bound.end, at[each] + share)) for each, bound in bounds.items()}
        records, reached = await source.read(ranges, PAGE_BYTES_MAX)
        found += records
        is_cut = any(reached[each] < end for each, (_, end) in ranges.items())
        at.update(reached)
        if len(found) >= count or is_cut or all(at[each] >= bound.end for each, bound in bounds.items()):
            break
        share *= 4
    found.sort(key=_age)
    cursor = {each.partition: offset for each, offset in at.items()}
    for partition, record in reversed(found[count:]):
        cursor[partition] = min(cursor[partition], record.offset)
    ends = {each.partition: bound.end for each, bound in bounds.items()}
    has_more = any(offset < ends[partition] for partition, offset in cursor.items())
    return Page(found[:count], cursor if has_more else {}, bounds)


def _age(read: Read) -> tuple[int, int, int]:
    partition, record = read
    return record.timestamp, record.offset, partition


# -- searching ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Progress:
    records: int = 0
    bytes: int = 0
    #: Offsets searched so far, and (below) in total.
    done: int = 0
    total: int = 0


async def search(
    source: Source, positions: Mapping[TopicPartition, int] | None, progress: Progress
) -> AsyncIterator[list[Read]]:
    """Search from these offsets on, or (None) backwards from the end, in slices of all partitions.

    A slice has few records, and few bytes: it is in memory for as long as its reader takes.
    """
    bounds = await source.bounds()
    if positions is None:
        at = {each: bound.end for each, bound in bounds.items()}
        progress.total = sum(bound.end - bound.start for bound in bounds.values())
        slices = _backwards(source, bounds, at)
    else:
        at = {each: min(max(positions.get(each, b.start), b.start), b.end) for each, b in bounds.items()}
        progress.total = sum(bound.end - at[each] for each, bound in bounds.items())
        slices = _forwards(source, bounds, at)
    async for found, done in slices:
        found.sort(key=_age, reverse=positions is None)
        progress.records += len(found)
        progress.bytes = source.bytes_read
        progress.done += done
        yield found


async def _forwards(
    source: Source, bounds: Mapping[TopicPartition, Bounds], at: dict[TopicPartition, int]
) -> AsyncIterator[tuple[list[Read], int]]:
    """Yield slices, each with the number of its offsets."""
    while ranges := {e: (o, min(bounds[e].end, o + _SEARCH_OFFSETS)) for e, o in at.items() if o < bounds[e].end}:
        records, reached = await source.read(ranges, _SEARCH_BYTES_MAX)
        at.update({each: reached[each] for each in ranges})
        yield records, sum(reached[each] - start for each, (start, _) in ranges.items())


async def _backwards(
    source: Source, bounds: Mapping[TopicPartition, Bounds], at: dict[TopicPartition, int]
) -> AsyncIterator[tuple[list[Read], int]]:
    """Like `_forwards`. A slice that is too large would lack its newest records: it is read again as a shorter one."""
    span = _SEARCH_OFFSETS
    while ranges := {e: (max(bounds[e].start, o - span), o) for e, o in at.items() if o > bounds[e].start}:
        records, reached = await source.read(ranges, _SEARCH_BYTES_MAX)
        left = {each: (reached[each], end) for each, (_, end) in ranges.items() if reached[each] < end}
        if left and span > 1:
            span = max(1, span // 8)
            continue
        while left:  # one record of each of many partitions
            more, reached = await source.read(left, _SEARCH_BYTES_MAX)
            records += more
            left = {each: (reached[each], end) for each, (_, end) in left.items() if reached[each] < end}
        at.update({each: start for each, (start, _) in ranges.items()})
        yield records, sum(end - start for start, end in ranges.values())
        span = min(_SEARCH_OFFSETS, 2 * span)


# -- new records ----------------------------------------------------------------------------------------------------------

#: How long a fetch of a tail waits at the broker, and so how long stopping may take.
_TAIL_WAIT_MS: Final = 250
#: Interval between attempts to find leaders of partitions without one.
_TAIL_LOOK_S: Final = 1.0
#: Limits of the queue for a slow viewer: records, and their bytes.
TAIL_WAITING_MAX: Final = 1_000
TAIL_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True, eq=False)
class TailReader:
    """One viewer of a tail."""

    _waiting: deque[Read] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    skipped: int = 0
    error: Exception | None = None

    def tell(self, records: Iterable[Read]) -> None:
        for read in records:
            self._waiting.append(read)
            self._waiting_bytes += bytes_of(read[1])
        while len(self._waiting) > TAIL_WAITING_MAX or self._waiting_bytes > TAIL_WAITING_BYTES_MAX:
            if len(self._waiting) == 1:
                break  # one large record is shown
            self._waiting_bytes -= bytes_of(self._waiting.popleft()[1])
            self.skipped += 1
        self._woken.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._woken.set()

    async def next(self, timeout_s: float) -> list[Read]:
        """Return the new records; empty after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return []
        if self.error is not None:
            raise self.error
        self._woken.clear()
        found, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
        return found


class Tails:
    """Reads each tail once from the brokers, for all its viewers."""

    def __init__(self, cluster: "ConsoleCluster") -> None:
        self._cluster = cluster
        self._tails: dict[object, tuple[set[TailReader], asyncio.Task[None]]] = {}
        self._slots: set[int] = set()

    def join(self, source: Source) -> TailReader:
        key = (source.topic, tuple(source.partitions), source.isolation_level)
        reader = TailReader()
        if key not in self._tails:
            if len(self._slots) >= 50:
                raise bad_request("50 different tails are open already")
            self._tails[key] = (set(), self._cluster.tasks.start(self._run(key, source), f"tail {source.topic}"))
        self._tails[key][0].add(reader)
        return reader

    def leave(self, reader: TailReader) -> None:
        for key, (readers, task) in list(self._tails.items()):
            readers.discard(reader)
            if not readers:
                del self._tails[key]
                task.cancel()

    async def _run(self, key: object, source: Source) -> None:
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        source.purpose = f"tail {slot}"
        try:
            positions: dict[TopicPartition, int] = {}
            config = replace(_FETCH, fetch_max_wait_ms=_TAIL_WAIT_MS, fetch_min_bytes=1)
            now_s, looked_s = asyncio.get_running_loop().time, -_TAIL_LOOK_S
            while True:
                if len(positions) < len(source.partitions) and now_s() - looked_s >= _TAIL_LOOK_S:
                    ends = {each: bound.end for each, bound in (await source.bounds()).items()}
                    positions, looked_s = ends | positions, now_s()
                if not positions:  # no partition has a leader now
                    await asyncio.sleep(_TAIL_LOOK_S)
                    continue
                fetched = await source.fetch(positions, config)
                found: list[Read] = []
                for each, answer in fetched.items():
                    if answer.position < 0:  # the offset is out of range, after retention or an unclean election
                        del positions[each]
                        continue
                    records, positions[each] = await source.decoded(answer, math.inf, PAGE_BYTES_MAX)
                    found += [(each.partition, record) for record in records]
                if found:
                    found.sort(key=_age)
                    for reader in self._tails[key][0]:
                        reader.tell(found)
        except Exception as error:
            for reader in self._tails[key][0] if key in self._tails else ():
                reader.fail(error)
        finally:
            self._slots.discard(slot)

    def stop(self) -> None:
        for _, task in self._tails.values():
            task.cancel()
        self._tails.clear()

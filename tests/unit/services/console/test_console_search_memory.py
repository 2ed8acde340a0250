"""A search, or an export that its client does not read, holds some megabytes of records at a time, however large they are."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from barnabas.base.ids import Offset, TopicPartition
from barnabas.client.fetching import Fetched
from barnabas.services.console import messages
from barnabas.services.console.reading import (
    TAIL_WAITING_BYTES_MAX,
    Bounds,
    Progress,
    Read,
    Source,
    TailReader,
    newest_first,
    search,
)
from barnabas.wire.compression import Codec
from barnabas.wire.records import BatchBuilder, Record

MEGABYTE = bytes(900_000)


class FakeSource:
    """Partitions in memory. As the real one, it stops after a read that goes beyond the bytes."""

    def __init__(self, partitions: int, count: int, value: bytes) -> None:
        self.records = {
            TopicPartition("t", p): [Record(o, o * partitions + p, None, value, ()) for o in range(count)]
            for p in range(partitions)
        }
        self.bytes_read = 0
        self.largest = 0

    async def bounds(self) -> dict[TopicPartition, Bounds]:
        return {each: Bounds(0, len(records)) for each, records in self.records.items()}

    async def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], bytes_max: int
    ) -> tuple[list[Read], dict[TopicPartition, int]]:
        at = {each: start for each, (start, _) in ranges.items()}
        found: list[Read] = []
        size = 0
        while size <= bytes_max and any(at[each] < end for each, (_, end) in ranges.items()):
            for each, (_, end) in ranges.items():
                if at[each] < end:
                    record = self.records[each][at[each]]
                    found.append((each.partition, record))
                    size += len(record.value or b"")
                    at[each] += 1
        self.bytes_read += size
        self.largest = max(self.largest, size)
        return found, at


@pytest.mark.parametrize("is_backwards", [True, False])
@pytest.mark.parametrize(("partitions", "count", "value"), [(1, 60, MEGABYTE), (3, 40, MEGABYTE), (3, 5_000, b"x")])
def test_all_records_come_in_small_slices(is_backwards: bool, partitions: int, count: int, value: bytes) -> None:
    source, progress = FakeSource(partitions, count, value), Progress()
    positions = None if is_backwards else dict.fromkeys(source.records, 0)

    async def run() -> list[list[Read]]:
        return [each async for each in search(source, positions, progress)]  # type: ignore[arg-type]

    slices = asyncio.run(run())
    assert max(sum(len(record.value or b"") for _, record in each) for each in slices) < 10_000_000
    assert source.largest < 10_000_000
    for partition in range(partitions):
        offsets = [record.offset for each in slices for p, record in each if p == partition]
        assert offsets == sorted(range(count), reverse=is_backwards)
    if is_backwards:
        for each in slices:
            assert each == sorted(each, key=lambda read: read[1].timestamp, reverse=True)
    assert progress.records == progress.done == progress.total == partitions * count


def test_slices_for_decoding_are_bounded_by_bytes() -> None:
    reads = [(0, Record(o, 0, b"k", MEGABYTE if o < 10 else b"", ())) for o in range(500)]
    slices = list(messages._slices(reads))
    assert [read for each in slices for read in each] == reads
    assert [len(each) for each in slices] == [2] * 5 + [200, 200, 90]


def _bombs(count: int) -> Fetched:
    """Batches of a kilobyte or two, each with ten records of a megabyte."""
    batches = b""
    for number in range(count):
        builder = BatchBuilder(codec=Codec.ZSTD, base_offset=10 * number)
        for _ in range(10):
            builder.append(b"k", MEGABYTE, timestamp=0)
        batches += builder.build()
    return Fetched(TopicPartition("t", 0), batches, 0, 10 * count, 10 * count, 0)


def test_records_are_decompressed_only_up_to_the_limit() -> None:
    fetched = _bombs(100)
    assert len(fetched.data) < 500_000
    source = Source(None, "t", [])  # type: ignore[arg-type]
    at, found = 0, 0
    for _ in range(3):
        records, at = asyncio.run(source.decoded(replace(fetched, position=at), 1_000, 4_000_000))
        assert 4 <= len(records) <= 6
        found += len(records)
        assert at == records[-1].offset + 1 == found
    assert 4_000_000 * 3 < source.bytes_read < 6_000_000 * 3
    records, at = asyncio.run(source.decoded(fetched, 3, 2**30))
    assert (len(records), at) == (3, 3)
    records, at = asyncio.run(source.decoded(fetched, 5, 0))
    assert (len(records), at) == (1, 1)  # one record always comes


def test_slow_viewer_of_a_tail_holds_some_megabytes() -> None:
    reader = TailReader()
    for offset in range(50):
        reader.tell([(0, Record(Offset(offset), 0, None, MEGABYTE, ()))])
    waiting = asyncio.run(reader.next(1))
    assert [record.offset for _, record in waiting] == list(range(50 - len(waiting), 50))
    assert 10 < len(waiting) < 20 and reader.skipped == 50 - len(waiting)
    reader.tell([(0, Record(Offset(50), 0, None, bytes(TAIL_WAITING_BYTES_MAX + 1), ()))])
    assert len(asyncio.run(reader.next(1))) == 1


class MeanSource(FakeSource):
    """Stops in the middle of a round, as the real one."""

    async def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], bytes_max: int
    ) -> tuple[list[Read], dict[TopicPartition, int]]:
        found, reached, size = [], {each: start for each, (start, _) in ranges.items()}, 0
        for each, (start, end) in ranges.items():
            for record in self.records[each][start:end]:
                if size <= bytes_max:
                    found.append((each.partition, record))
                    size += len(record.value or b"")
                    reached[each] = record.offset + 1
        self.bytes_read += size
        return found, reached


def test_every_large_record_is_on_a_page_however_many_partitions_there_are() -> None:
    source = MeanSource(partitions=30, count=2, value=MEGABYTE)
    seen: list[tuple[int, int]] = []
    before: dict[int, int] | None = None
    for _ in range(20):
        source.bytes_read = 0
        page = asyncio.run(newest_first(source, 50, before))  # type: ignore[arg-type]
        seen += [(partition, record.offset) for partition, record in page.records]
        before = page.cursor
        if not before:
            break
    assert sorted(seen) == [(partition, offset) for partition in range(30) for offset in range(2)]


class SlowFilter:
    """An expression that takes long for each record."""

    is_open = False
    is_over = False

    def matches(self, shown: object) -> bool:
        time.sleep(0.05)
        return True


async def test_slow_filters_hold_up_no_other_page_and_end_on_time() -> None:
    ends_s = time.monotonic() + 0.5
    slow = [
        asyncio.create_task(messages._matching(SlowFilter(), [None] * 1_000, ends_s=ends_s))  # type: ignore
        for _ in range(12)
    ]
    await asyncio.sleep(0.01)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7
    assert not any(task.done() for task in slow)
    for hits, checked in await asyncio.gather(*slow):
        assert len(hits) == checked < 20

"""A search, or an export that its client does not read, holds some megabytes of records at a time, however large they are."""

import asyncio
from collections.abc import Mapping

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.services.console import messages
from barnabas.services.console.reading import Bounds, Progress, Read, search
from barnabas.wire.records import Record

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

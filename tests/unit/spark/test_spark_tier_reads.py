"""Slices of a task, straight from a store: in order, the next ones in advance, and a deleted one from elsewhere."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from barnabas.base.ids import TopicPartition
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.store import Store, StoreFault, open_store
from barnabas.spark import tier_reads
from barnabas.spark.tier_reads import read_slices
from barnabas.spark.tier_slices import TierSlice, slices_in_tasks
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.features.tiered.segments import segment as tiered
from tests.unit.broker.features.tiered.tier_support import blocks_of_bytes

PARTITION = TopicPartition("t", 0)
RECORDS = 40


def segment(base: int) -> bytes:
    """Batches of four records."""
    built = []
    for first in range(base, base + RECORDS, 4):
        builder = BatchBuilder(base_offset=first)
        for offset in range(first, first + 4):
            builder.append(None, b"%d" % offset, timestamp=1)
        built.append(builder.build())
    return b"".join(built)


class Counted:
    """A store that counts concurrent reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gets: list[str] = []

    async def get_range(self, key: str, start: int, end: int) -> memoryview:
        self.gets.append(key)
        return await self._store.get_range(key, start, end)

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        return await self._store.get(key, bytes_max=bytes_max)


def key(number: int) -> str:
    return layout.log_key(tiered(number, number * RECORDS, (number + 1) * RECORDS - 1))


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TierSlice]:
    """Three segments of several chunks each, the middle one copied without checksums, as by earlier versions."""
    monkeypatch.setattr(tier_reads, "_CHUNK_BYTES", 300)
    store = open_store(f"file://{tmp_path}")
    found = []
    for number in range(3):
        data = segment(number * RECORDS)
        name = layout.parse_key(key(number))
        assert name is not None
        blocks = blocks_of_bytes(data, name.id.uuid, block_bytes=100)
        indexes = layout.pack_indexes({} if number == 1 else {layout.Part.BLOCKS: blocks.encode()})
        asyncio.run(store.put(layout.indexes_of(key(number)), indexes))
        asyncio.run(store.put(key(number), data))
        found.append(TierSlice(PARTITION, b"", key(number), number * RECORDS, (number + 1) * RECORDS, 0, len(data)))
    return found


def read(tmp_path: Path, parts: list[TierSlice], *, insists: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the offsets, and the ranges that were read elsewhere."""
    asked: list[tuple[int, int]] = []

    def elsewhere(part: TierSlice, first: int, until: int, error: Exception) -> Iterator[pa.RecordBatch]:
        asked.append((first, until))
        return iter([pa.RecordBatch.from_pydict({"offset": list(range(first, until))})])

    rows = read_slices(
        f"file://{tmp_path}", {}, parts, ("offset",), read_committed=False, elsewhere=elsewhere, insists=insists
    )
    return [offset for batch in rows for offset in batch.column("offset").to_pylist()], asked


def test_slices_follow_on_each_other(tmp_path: Path, parts: list[TierSlice]) -> None:
    assert read(tmp_path, parts) == (list(range(3 * RECORDS)), [])


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_slice_that_is_gone_is_read_elsewhere_and_the_others_from_the_store(
    tmp_path: Path, parts: list[TierSlice], gone: int
) -> None:
    (tmp_path / key(gone)).unlink()
    assert read(tmp_path, parts) == (list(range(3 * RECORDS)), [(gone * RECORDS, (gone + 1) * RECORDS)])


def test_slice_that_is_cut_short_is_read_elsewhere_from_the_break_on(tmp_path: Path, parts: list[TierSlice]) -> None:
    whole = (tmp_path / key(1)).read_bytes()
    (tmp_path / key(1)).write_bytes(whole[:700])
    offsets, [(first, until)] = read(tmp_path, parts)
    assert offsets == list(range(3 * RECORDS))
    assert RECORDS < first < until == 2 * RECORDS
    with pytest.raises(StoreFault):
        read(tmp_path, parts, insists=True)


def test_a_task_that_stops_early_starts_few_more_reads(
    tmp_path: Path, parts: list[TierSlice], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(open_store(f"file://{tmp_path}"))
    monkeypatch.setattr(tier_reads, "open_store", lambda url, settings: counted)

    def nowhere(part: TierSlice, first: int, until: int, error: Exception) -> Iterator[pa.RecordBatch]:
        raise error

    rows = read_slices("file:///", {}, parts, ("offset",), read_committed=False, elsewhere=nowhere, insists=True)
    assert next(rows).num_rows
    rows.close()  # type: ignore[attr-defined]
    assert set(counted.gets) == {key(0)}
    assert len(counted.gets) <= 1 + tier_reads._CHUNKS_AHEAD


def test_the_next_slices_are_read_in_parallel_with_the_first(
    tmp_path: Path, parts: list[TierSlice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_reads, "_CHUNK_BYTES", 1 << 20)
    assert len(parts) == tier_reads._CHUNKS_AHEAD
    all_of_them = threading.Barrier(len(parts))

    class Together(Counted):
        async def get_range(self, key: str, start: int, end: int) -> memoryview:
            all_of_them.wait(60)  # in a thread of its own
            return await super().get_range(key, start, end)

    counted = Together(open_store(f"file://{tmp_path}"))
    monkeypatch.setattr(tier_reads, "open_store", lambda url, settings: counted)
    assert read(tmp_path, parts) == (list(range(3 * RECORDS)), [])


def test_small_slices_of_a_partition_share_a_task() -> None:
    def slice_of(partition: int, number: int, megabytes: int) -> TierSlice:
        place = TopicPartition("t", partition)
        return TierSlice(place, b"", f"{partition}-{number}", number, number + 1, 0, megabytes << 20)

    small = [slice_of(0, number, 32) for number in range(6)]
    other, large = slice_of(1, 0, 1), slice_of(1, 1, 500)
    assert [len(task) for task in slices_in_tasks([*small, other, large])] == [6, 1, 1]
    assert slices_in_tasks([]) == []


def test_object_with_another_segments_bytes_is_a_failure_that_names_it(tmp_path: Path, parts: list[TierSlice]) -> None:
    """The records of the other segment would be left out, and the slice would look empty."""
    store = open_store(f"file://{tmp_path}")
    known = [
        replace(part, segment_offsets=(number * RECORDS, (number + 1) * RECORDS - 1))
        for number, part in enumerate(parts)
    ]
    assert read(tmp_path, known, insists=True)[0] == list(range(3 * RECORDS))
    for other in (0, 2):
        asyncio.run(store.put(key(1), segment(other * RECORDS)))
        with pytest.raises(StoreFault, match=rf"{key(1)} has offset .* has 40 to 79"):
            read(tmp_path, known, insists=True)


@pytest.mark.parametrize("wrong", ["batches in another order", "a part of another segment", "a base offset"])
def test_bytes_that_no_batch_covers_are_a_failure_that_names_the_object(
    tmp_path: Path, parts: list[TierSlice], wrong: str
) -> None:
    good = (tmp_path / key(0)).read_bytes()
    starts = [position for position, _ in iter_batches(good)]
    batches = [good[start:end] for start, end in pairwise([*starts, len(good)])]
    other = (tmp_path / key(1)).read_bytes()
    bad = {
        "batches in another order": b"".join([*batches[:3], batches[4], batches[3], *batches[5:]]),
        "a part of another segment": good[: starts[5]] + other[starts[5] - len(good) :],
        "a base offset": good[: starts[5] + 7] + b"\x15" + good[starts[5] + 8 :],
    }[wrong]
    assert len(bad) == len(good) and bad != good
    (tmp_path / key(0)).write_bytes(bad)
    with pytest.raises(StoreFault, match=f"{key(0)}: the 100 bytes from .* have a wrong checksum"):
        read(tmp_path, parts, insists=True)
    cut = replace(parts[0], start=starts[0], end=starts[2], from_offset=0, until_offset=8)
    assert read(tmp_path, [cut], insists=True) == (list(range(8)), []), "only what is read is checked"


def test_indexes_of_another_segment_are_a_failure_that_names_the_object(tmp_path: Path, parts: list[TierSlice]) -> None:
    (tmp_path / layout.indexes_of(key(0))).write_bytes((tmp_path / layout.indexes_of(key(2))).read_bytes())
    with pytest.raises(StoreFault, match=layout.indexes_of(key(0))):
        read(tmp_path, parts, insists=True)

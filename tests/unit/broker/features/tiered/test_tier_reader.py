"""Records, timestamps and aborted transactions in the tier are read as if they were local."""

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.lineage import pieces
from barnabas.broker.features.tiered.reader import FetchQuota, NotInTier
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.features.tiered.store import StoreFault
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.record_batch import check_crc, iter_batches
from barnabas.wire.records import BatchBuilder, end_txn_marker, iter_records
from tests.unit.broker.features.tiered.tier_support import Tier, blocks_of_bytes
from tests.unit.broker.storage.log.log_support import NOW_MS, Entry, batch, contents

T = TypeVar("T")


async def read_all(tier: Tier, offset: int, *, max_bytes: int = 300) -> list[Entry]:
    """Read from `offset` to the local start, as a consumer does."""
    found: list[Entry] = []
    while offset < tier.log.local_log_start_offset:
        result = await tier.reader.read(tier.view, offset, max_bytes=max_bytes, max_offset=tier.log.high_watermark)
        data = result.read()
        assert data
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            found += [
                Entry(record.offset, record.value, header.leader_epoch)
                for record in iter_records(data, position, header)
                if record.offset >= offset
            ]
        offset = found[-1].offset + 1
        assert result.upper_offset == offset
    return found


async def filled(tmp_path: Path, **how: int) -> Tier:
    tier = Tier(tmp_path, **how)
    for epoch in (0, 2, 3):
        tier.partition.fill(20, epoch=epoch)
    tier.partition.commit()
    return tier


@pytest.mark.parametrize("max_bytes", [1, 300, 5000])
@pytest.mark.parametrize("chunk_bytes", [100, 256, 1 << 20])
async def test_every_record_is_read_from_any_offset(tmp_path: Path, max_bytes: int, chunk_bytes: int) -> None:
    tier = await filled(tmp_path, chunk_bytes=chunk_bytes)
    before = contents(tier.log)
    await tier.copy()
    local = tier.log.local_log_start_offset
    assert local > 90
    for offset in (0, 1, 17, 39, 40, 41, local - 1):
        assert await read_all(tier, offset, max_bytes=max_bytes) == [e for e in before if offset <= e.offset < local]
    await tier.settled()


async def test_a_read_is_whole_batches_and_no_more_than_it_may_have(tmp_path: Path) -> None:
    tier = await filled(tmp_path)
    await tier.copy()
    result = await tier.reader.read(tier.view, 5, max_bytes=400, max_offset=1000)
    assert 0 < result.size_bytes <= 400
    assert result.is_cut
    result.release()
    nothing = await tier.reader.read(tier.view, 5, max_bytes=10, max_offset=1000, min_one_batch=False)
    assert (nothing.size_bytes, nothing.upper_offset) == (0, 5)
    bounded = await tier.reader.read(tier.view, 5, max_bytes=400, max_offset=6)
    assert [header.last_offset for _, header in iter_batches(bounded.read())] == [5]
    await tier.settled()


async def test_an_offset_that_no_segment_has_is_not_in_the_tier(tmp_path: Path) -> None:
    tier = await filled(tmp_path)
    with pytest.raises(NotInTier):
        await tier.reader.read(tier.view, 0, max_bytes=100, max_offset=1000)


async def test_chunks_are_fetched_once_for_all_readers_and_cached(tmp_path: Path) -> None:
    tier = await filled(tmp_path, chunk_bytes=1 << 20)
    await tier.copy()
    tier.store.gate = asyncio.Event()
    reads = [
        asyncio.ensure_future(tier.reader.read(tier.view, offset, max_bytes=300, max_offset=1000))
        for offset in (0, 2, 4)
    ]
    await asyncio.sleep(0)
    tier.store.gate.set()
    for each in await asyncio.gather(*reads):
        each.release()
    assert len(tier.store.gets) == 2  # the indexes, and one chunk
    (await tier.reader.read(tier.view, 1, max_bytes=300, max_offset=1000)).release()
    assert len(tier.store.gets) == 2
    assert tier.quota_bytes == tier.copies.fetched_bytes > 0
    await tier.settled()


async def test_a_reader_in_order_is_read_ahead_for_over_the_end_of_a_segment(tmp_path: Path) -> None:
    tier = await filled(tmp_path, chunk_bytes=256, read_ahead_bytes=100_000)
    await tier.copy()
    first = await tier.reader.read(tier.view, 0, max_bytes=300, max_offset=1000)
    first.release()
    await tier.settled()
    one = set(tier.store.gets)
    assert len(one) == 2, "no read ahead after a single read"
    (await tier.reader.read(tier.view, first.upper_offset, max_bytes=300, max_offset=1000)).release()
    await tier.settled()
    assert len(set(tier.store.gets)) == 4
    asked = len(tier.store.gets)
    after = next(iter(pieces(tier.segments, tier.log.epochs, 0, 1000))).end
    (await tier.reader.read(tier.view, after, max_bytes=300, max_offset=1000)).release()
    assert len(tier.store.gets) == asked, "it was there before it was asked for"
    await tier.settled()


async def test_copies_are_bounded_and_go_with_the_one_that_was_not_used_for_longest(tmp_path: Path) -> None:
    tier = await filled(tmp_path, chunks_bytes_max=2500)
    await tier.copy()
    pinned = await tier.reader.read(tier.view, 0, max_bytes=300, max_offset=1000)
    expected = pinned.ranges[0].read()
    assert len(await read_all(tier, 0)) > 50
    await tier.settled()
    assert tier.copies.chunks_bytes <= 2500
    kept = list((tmp_path / "copies").iterdir())
    assert 1 <= len(kept) <= 3
    assert pinned.read() == expected, "a response keeps its data"
    assert len(await read_all(tier, 0)) > 50
    await tier.settled()


async def test_readers_get_everything_even_if_nothing_may_be_kept(tmp_path: Path) -> None:
    tier = await filled(tmp_path, chunks_bytes_max=0, read_ahead_bytes=1000)
    before = contents(tier.log)
    await tier.copy()
    local = tier.log.local_log_start_offset
    for found in await asyncio.gather(*(read_all(tier, 0) for _ in range(3))):
        assert found == [entry for entry in before if entry.offset < local]
    await tier.settled()
    assert tier.copies.chunks_bytes == 0
    assert not list((tmp_path / "copies").iterdir())


async def test_readers_get_everything_even_if_one_index_is_more_than_may_be_kept(tmp_path: Path) -> None:
    tier = await filled(tmp_path)
    before = contents(tier.log)
    await tier.copy()
    tier.copies.indexes_bytes_max = 1
    async with asyncio.timeout(50):
        for offset in (0, 50):
            assert await read_all(tier, offset) == [
                each for each in before if offset <= each.offset < tier.log.local_log_start_offset
            ]
    await tier.settled()
    assert len(tier.copies._copies) <= 1


async def test_chunks_read_ahead_for_a_dropped_copy_are_discarded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = await filled(tmp_path)
    await tier.copy()
    segment = next(iter(pieces(tier.segments, tier.log.epochs, 0, 9))).segment
    copy = await tier.copies.open(segment)
    asked = len(tier.store.gets)
    tier.copies.read_ahead(segment, 0, 600)
    tier.copies.forget(copy)  # before its first chunk was requested
    await tier.settled()
    assert len(tier.store.gets) == asked
    assert not list((tmp_path / "copies").iterdir())
    assert "cannot remove" not in caplog.text


async def test_a_segment_that_retention_deletes_is_looked_for_again(tmp_path: Path) -> None:
    tier = await filled(tmp_path)
    await tier.copy()
    gone = next(iter(pieces(tier.segments, tier.log.epochs, 0, 1000))).segment
    tier.store.gate = asyncio.Event()
    read = asyncio.ensure_future(tier.reader.read(tier.view, 0, max_bytes=300, max_offset=1000))
    await asyncio.sleep(0.01)
    tier.delete(gone)
    tier.store.gate.set()
    with pytest.raises(NotInTier):
        await read
    await tier.settled()


async def test_a_store_that_is_away_is_a_fault_and_no_more_once_it_is_back(tmp_path: Path) -> None:
    tier = await filled(tmp_path)
    await tier.copy()
    tier.store.is_away = True
    with pytest.raises(StoreFault, match="away"):
        await tier.reader.read(tier.view, 0, max_bytes=300, max_offset=1000)
    tier.store.is_away = False
    assert len(await read_all(tier, 0)) > 50
    tier.copies.forget(await tier.copies.open(next(iter(pieces(tier.segments, tier.log.epochs, 0, 9))).segment))
    await tier.settled()


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
async def test_damage_is_a_fault_and_the_damaged_copy_is_dropped(tmp_path: Path, suffix: str) -> None:
    tier = await filled(tmp_path)
    await tier.copy()
    key = next(each for each in sorted(tier.store.objects) if each.endswith(suffix))
    good = tier.store.objects[key]
    tier.store.objects[key] = bytes(len(good))
    with pytest.raises(StoreFault):
        await tier.reader.read(tier.view, 0, max_bytes=300, max_offset=1000)
    tier.store.objects[key] = good
    assert len(await read_all(tier, 0)) > 50
    await tier.settled()


async def even(tmp_path: Path, **how: int | None) -> tuple[Tier, list[Entry], list[RemoteSegment]]:
    """A log whose segments have equal sizes, with batches at equal positions."""
    tier = Tier(tmp_path, **how)  # type: ignore[arg-type]
    for number in range(60):
        records = batch([b"x" * 60], timestamp=NOW_MS + number)
        tier.log.append_as_leader(records, leader_epoch=0, now_ms=NOW_MS)
    tier.partition.commit()
    before = contents(tier.log)
    await tier.copy()
    found = [each.segment for each in pieces(tier.segments, tier.log.epochs, 0, tier.log.local_log_start_offset)]
    assert len(found) > 4 and len({each.size_bytes for each in found}) == 1
    return tier, before, found


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
@pytest.mark.parametrize("other", [0, 2, -1])
@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(256, None), (1 << 20, None), (256, 100), (1 << 20, 1 << 16)])
async def test_object_with_another_segments_bytes_is_a_fault_that_names_it_and_no_gap(
    tmp_path: Path, suffix: str, other: int, chunk_bytes: int, block_bytes: int | None
) -> None:
    tier, before, found = await even(tmp_path, chunk_bytes=chunk_bytes, block_bytes=block_bytes)
    keys = [key for each in found for key in layout.keys(each) if key.endswith(suffix)]
    victim = found[1]
    good = tier.store.objects[keys[1]]
    tier.store.objects[keys[1]] = tier.store.objects[keys[other]]
    for offset in range(victim.start_offset, victim.end_offset + 1):
        with pytest.raises(StoreFault, match=re.escape(keys[1])):
            await tier.reader.read(tier.view, offset, max_bytes=300, max_offset=1000)
    tier.store.objects[keys[1]] = good
    local = tier.log.local_log_start_offset
    assert await read_all(tier, 0) == [entry for entry in before if entry.offset < local]
    await tier.settled()


@pytest.mark.parametrize("other", [0, 2])
@pytest.mark.parametrize("block_bytes", [None, 100])
async def test_search_by_time_in_another_segments_bytes_is_a_fault_that_names_it(
    tmp_path: Path, other: int, block_bytes: int | None
) -> None:
    tier, _, found = await even(tmp_path, block_bytes=block_bytes)
    keys = [layout.log_key(each) for each in found]
    tier.store.objects[keys[1]] = tier.store.objects[keys[other]]
    for offset in range(found[1].start_offset, found[1].end_offset + 1):
        with pytest.raises(StoreFault, match=re.escape(keys[1])):
            await tier.reader.offset_for_timestamp(tier.view, NOW_MS + offset)
    await tier.settled()


@pytest.mark.parametrize("wrong", ["a part of another segment", "batches in another order", "a base offset"])
@pytest.mark.parametrize("chunk_bytes", [256, 1 << 20])
async def test_bytes_that_no_batch_covers_are_a_fault_that_names_the_object_and_never_a_record(
    tmp_path: Path, wrong: str, chunk_bytes: int
) -> None:
    tier, before, found = await even(tmp_path, chunk_bytes=chunk_bytes, block_bytes=100)
    key, other = layout.log_key(found[1]), tier.store.objects[layout.log_key(found[2])]
    good = tier.store.objects[key]
    starts = [position for position, _ in iter_batches(good)]
    size = starts[1]
    batches = [good[at : at + size] for at in starts]
    tier.store.objects[key] = {
        # Every batch is intact, and lies where the index says.
        "a part of another segment": b"".join([batches[0], other[size : 2 * size], *batches[2:]]),
        "batches in another order": b"".join([*batches[:2], batches[3], batches[2], *batches[4:]]),
        "a base offset": good[: starts[2] + 7] + bytes([good[starts[2] + 7] + 1]) + good[starts[2] + 8 :],
    }[wrong]
    assert len(tier.store.objects[key]) == len(good)
    refused = 0
    for offset in range(found[1].start_offset, found[1].end_offset + 1):
        try:
            result = await tier.reader.read(tier.view, offset, max_bytes=1, max_offset=1000)
        except StoreFault as error:
            assert key in str(error)
            refused += 1
        else:
            assert result.read() == batches[offset - found[1].start_offset]
    assert refused
    tier.store.objects[key] = good
    local = tier.log.local_log_start_offset
    assert await read_all(tier, 0) == [entry for entry in before if entry.offset < local]
    await tier.settled()


async def test_wrong_checksums_are_fetched_again_once_they_are_right(tmp_path: Path) -> None:
    tier, before, found = await even(tmp_path)
    key = layout.indexes_key(found[1])
    parts = layout.unpack_indexes(good := tier.store.objects[key])
    blocks = blocks_of_bytes(bytes(found[1].size_bytes), found[1].id.uuid, block_bytes=100)
    tier.store.objects[key] = layout.pack_indexes({**parts, layout.Part.BLOCKS: blocks.encode()})
    with pytest.raises(StoreFault, match="wrong checksum"):
        await read_all(tier, 0)
    tier.store.objects[key] = good
    local = tier.log.local_log_start_offset
    assert await read_all(tier, 0) == [entry for entry in before if entry.offset < local]
    await tier.settled()


async def test_indexes_of_another_segment_with_the_same_end_are_a_fault(tmp_path: Path) -> None:
    """Such as those of another partition's segment, or of another attempt to copy this one."""
    tier, _, found = await even(tmp_path)
    key = layout.indexes_key(found[1])
    parts = layout.unpack_indexes(tier.store.objects[key])
    blocks = blocks_of_bytes(tier.store.objects[layout.log_key(found[1])], b"another" + bytes(9), block_bytes=100)
    tier.store.objects[key] = layout.pack_indexes({**parts, layout.Part.BLOCKS: blocks.encode()})
    with pytest.raises(StoreFault, match=re.escape(key)):
        await tier.reader.read(tier.view, found[1].start_offset, max_bytes=1, max_offset=1000)
    with pytest.raises(StoreFault, match=re.escape(key)):
        await tier.reader.start_after(found[1], log_start_offset=0)
    await tier.settled()


async def test_records_of_an_overruled_leader_are_not_the_logs(tmp_path: Path) -> None:
    """After an unclean election: the old leader has copied more of its epoch than the new one ever had."""
    tier = await filled(tmp_path)
    await tier.copies.prepare()
    for candidate in list(tier.log.copy_candidates(0)):
        segment = await tier.copy_one(candidate)
        if len(segment.epochs) == 2:
            break
    epochs = tier.log.epochs
    cut = int(segment.epochs[max(segment.epochs)]) + 2
    epochs.truncate_from_end(cut)
    epochs.assign(9, cut)
    found = list(pieces(tier.segments, epochs, 0, 1000))
    assert found[-1].end == cut, "from there on the log has other records"
    result = await tier.reader.read(tier.view, segment.start_offset, max_bytes=10_000, max_offset=1000)
    last = [header.last_offset for _, header in iter_batches(result.read())][-1]
    assert last == cut - 1
    with pytest.raises(NotInTier):
        await tier.reader.read(tier.view, cut, max_bytes=10_000, max_offset=1000)
    await tier.settled()


# -- timestamps


async def test_a_timestamp_is_found_on_either_side_of_the_border(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for number in range(60):
        tier.partition.append(b"%d" % number * 20, timestamp=NOW_MS + number * 1000)
    tier.partition.commit()
    await tier.copy()
    local = tier.log.local_log_start_offset
    assert 40 < local < 60
    for number in (0, 1, 7, 30, local - 1):
        found = await tier.reader.offset_for_timestamp(tier.view, NOW_MS + number * 1000 - 5)
        assert found == (NOW_MS + number * 1000, number, 0)
    assert await tier.reader.offset_for_timestamp(tier.view, NOW_MS + local * 1000 - 5) is None
    tier.log.maybe_increment_log_start_offset(12)
    found = await tier.reader.offset_for_timestamp(tier.view, 0)
    assert found == (NOW_MS + 12_000, 12, 0)
    assert tier.reader.max_timestamp(tier.view) == NOW_MS + (local - 1) * 1000
    await tier.settled()


async def test_a_timestamp_out_of_order_is_found_where_it_comes_first(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    stamps = [5, 3, 9, 1, 2, 20, 4, 8, 30, 6] * 6
    for number, stamp in enumerate(stamps):
        tier.partition.append(b"%d" % number * 20, timestamp=stamp + 100 * (number // 20))
    tier.partition.commit()
    await tier.copy()
    local = tier.log.local_log_start_offset
    real = [stamp + 100 * (number // 20) for number, stamp in enumerate(stamps)]
    for wanted in (1, 4, 9, 10, 25, 31, 105, 130):
        expected = next((n for n, stamp in enumerate(real) if stamp >= wanted and n < local), None)
        found = await tier.reader.offset_for_timestamp(tier.view, wanted)
        assert (None if found is None else found.offset) == expected, wanted
    await tier.settled()


async def test_a_timestamp_is_found_behind_one_that_was_deleted_in_the_middle_of_its_batch(tmp_path: Path) -> None:
    """The index names the batch, of which only earlier records remain. The following bytes had not been fetched, and were
    mistaken for damage each time."""
    tier = Tier(tmp_path)
    builder = BatchBuilder()
    builder.append(b"key", b"deleted", timestamp=NOW_MS + 5000)
    builder.append(b"key", b"kept", timestamp=NOW_MS)
    tier.log.append_as_leader(bytearray(builder.build()), leader_epoch=0, now_ms=NOW_MS)
    for number in range(2, 30):
        tier.partition.append(b"%d" % number * 20, timestamp=NOW_MS + (6000 if number == 8 else 1))
    tier.partition.commit()
    tier.log.maybe_increment_log_start_offset(1)
    await tier.copy()
    assert tier.log.local_log_start_offset > 8
    assert await tier.reader.offset_for_timestamp(tier.view, NOW_MS + 4500) == (NOW_MS + 6000, 8, 0)
    await tier.settled()


async def leaves_the_disk_while_the_store_is_asked(tier: Tier, question: Coroutine[Any, Any, T], until: int) -> T:
    """Half of the log is only in the tier, the rest in both; the rest is deleted locally before the store answers."""
    await tier.copy(until=until)
    rest = list(tier.log.copy_candidates(tier.log.local_log_start_offset))
    for candidate in rest:
        await tier.copy_one(candidate)
    tier.store.gate = asyncio.Event()
    asked = asyncio.ensure_future(question)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert tier.store.gets, "it waits for the store"
    tier.log.highest_copied_offset = rest[-1].end_offset
    tier.log.delete_old_segments(NOW_MS)
    assert tier.log.local_log_start_offset == rest[-1].end_offset + 1
    tier.store.gate.set()
    answer = await asked
    await tier.settled()
    return answer


async def test_a_timestamp_is_found_in_what_leaves_the_disk_while_the_store_is_asked(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for number in range(60):
        # The first one is the last of its segment, so that the store is read for it.
        tier.partition.append(b"%d" % number * 20, timestamp=NOW_MS + (25_500 if number == 0 else number * 1000))
    tier.partition.commit()
    tier.log.maybe_increment_log_start_offset(1)
    question = tier.reader.offset_for_timestamp(tier.view, NOW_MS + 25_000)
    found = await leaves_the_disk_while_the_store_is_asked(tier, question, until=20)
    assert found == (NOW_MS + 25_000, 25, 0)


# -- transactions


def begin(tier: Tier, producer: int, sequence: int) -> int:
    records = batch([b"open" * 30], producer_id=producer, producer_epoch=0, sequence=sequence, transactional=True)
    return tier.log.append_as_leader(records, leader_epoch=0, now_ms=NOW_MS).first_offset


def end(tier: Tier, producer: int, *, commit: bool) -> None:
    marker = end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=NOW_MS
    )
    tier.log.append_as_leader(bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)


async def test_aborted_transactions_are_the_same_before_and_after_the_copy(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    begin(tier, 1, 0)
    for sequence in range(12):
        begin(tier, 2, sequence)
        if sequence % 3 == 0:
            end(tier, 2, commit=False)
        elif sequence % 3 == 2:
            end(tier, 2, commit=True)
        tier.partition.fill(1)
    end(tier, 1, commit=False)  # its first record is segments before its marker
    tier.partition.fill(12)
    tier.partition.commit()
    ranges = [(start, start + size) for start in range(0, tier.log.log_end_offset, 3) for size in (1, 5, 40)]
    expected = {each: set(tier.log.aborted_transactions(*each)) for each in ranges}
    assert any(expected.values())
    marker = max(txn.last_offset for each in expected.values() for txn in each)
    for until in (marker - 10, None):
        await tier.copy(until=until)
        border = tier.log.local_log_start_offset
        assert border > 0
        for start, upper in ranges:
            if start < border:
                found = await tier.reader.aborted_transactions(tier.view, start, upper)
                wanted = {(txn.producer_id, txn.first_offset) for txn in expected[start, upper]}
                assert {(txn.producer_id, txn.first_offset) for txn in found} == wanted
                assert len(found) == len(wanted)
    await tier.settled()


async def test_an_abort_that_leaves_the_disk_while_the_store_is_asked_is_found(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    begin(tier, 2, 0)
    end(tier, 2, commit=False)
    first = begin(tier, 1, 0)
    tier.partition.fill(20)
    end(tier, 1, commit=False)
    tier.partition.fill(20)
    tier.partition.commit()
    marker = max(txn.last_offset for txn in tier.log.aborted_transactions(0, 100))
    question = tier.reader.aborted_transactions(tier.view, first, first + 1)
    found = await leaves_the_disk_while_the_store_is_asked(tier, question, until=marker)
    assert [(txn.producer_id, txn.first_offset) for txn in found] == [(1, first)]


async def test_transactions_that_an_overruled_leader_aborted_do_not_hide_those_of_the_log(tmp_path: Path) -> None:
    """After an unclean election: the old leader had committed what is aborted in the log, and aborted something else."""
    tier = Tier(tmp_path)
    await tier.copies.prepare()
    first = begin(tier, 1, 0)
    cut = tier.log.log_end_offset
    end(tier, 1, commit=True)
    begin(tier, 2, 0)
    end(tier, 2, commit=False)
    tier.partition.fill(10)
    tier.partition.commit()
    await tier.copy_one(next(iter(tier.log.copy_candidates(0))))
    tier.log.truncate_to(cut)
    marker = end_txn_marker(commit=False, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=NOW_MS)
    tier.log.append_as_leader(bytearray(marker), leader_epoch=9, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    tier.partition.fill(20, epoch=9)
    tier.partition.commit()
    await tier.copy()
    assert tier.log.local_log_start_offset > cut
    found = await tier.reader.aborted_transactions(tier.view, first, first + 1)
    assert [(txn.producer_id, txn.first_offset) for txn in found] == [(1, first)]
    await tier.settled()


# -- a new replica


async def test_a_replica_begins_after_a_segment_with_its_epochs_and_producers(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for sequence in range(30):
        records = batch([b"x" * 60], producer_id=4, producer_epoch=1, sequence=sequence)
        tier.log.append_as_leader(records, leader_epoch=sequence // 10, now_ms=NOW_MS)
    tier.partition.commit()
    await tier.copy()
    segment = list(pieces(tier.segments, tier.log.epochs, 0, 1000))[1].segment
    start = await tier.reader.start_after(segment, log_start_offset=3)
    assert start.offset == segment.end_offset + 1
    assert start.epochs[0] == (0, 3)
    assert [entry.epoch for entry in start.epochs] == [e.epoch for e in tier.log.epochs.below(start.offset)]
    assert [(entry.producer_id, entry.last_sequence) for entry in start.producers] == [(4, start.offset - 1)]
    broken = replace(segment, id=segment.id._replace(uuid=b"x" * 16))
    with pytest.raises(StoreFault):
        await tier.reader.start_after(broken, log_start_offset=3)


async def test_reads_wait_while_the_quota_is_used_up() -> None:
    now = [0]
    quota = FetchQuota(windows=2, window_ms=20, now_ms=lambda: now[0], limit=10_000_000_000)
    await asyncio.wait_for(quota.wait_for(1000), 1)
    quota.limit = 1000
    waiting = asyncio.ensure_future(quota.wait_for(1000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await waiting

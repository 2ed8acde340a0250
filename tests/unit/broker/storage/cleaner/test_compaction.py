"""What one cleaning keeps, drops and changes, rule by rule."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.config.log_config import CLEANUP_DELETE, LOG_APPEND_TIME, LONG_MAX
from barnabas.base.errors import Malformed
from barnabas.broker.storage.cleaner import scan as cleaner_scan
from barnabas.broker.storage.cleaner.dirty_map import scan_piece
from barnabas.broker.storage.cleaner.engine import Engine
from barnabas.broker.storage.cleaner.scan import key_digest, largest_timestamp_delta, record_starts
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
    MIN_BATCH_LENGTH,
    compute_crc,
)
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, DELETE_RETENTION_MS, SETTINGS, CompactedLog
from tests.unit.broker.storage.log.log_support import NOW_MS

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path)


def test_only_the_last_value_of_each_key_stays_at_its_offset(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.put((b"c", b"1"), (b"b", b"2"))
    log.roll()
    done = log.clean()
    assert [(record.offset, record.key, record.value) for record in log.records()] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]
    assert done is not None and done.next_dirty_offset == 5
    assert (done.stats.records_read, done.stats.records_written) == (5, 3)


def test_a_key_of_the_active_segment_does_not_supersede(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.roll()
    log.put((b"a", b"2"))
    log.clean()
    assert log.values() == {b"a": [b"1", b"2"]}


def test_a_dirty_key_supersedes_the_clean_part(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"))
    log.roll()
    log.clean()
    log.put((b"a", b"2"))
    log.roll()
    log.clean()
    assert log.values() == {b"b": [b"1"], b"a": [b"2"]}


@pytest.mark.parametrize("codec", list(Codec))
def test_records_keep_offset_timestamp_headers_and_codec(log: CompactedLog, codec: Codec) -> None:
    log.put((b"a", b"1" * 50), (b"b", b"2" * 50), (b"a", b"3" * 50), (b"c", b"4" * 50), codec=codec, timestamp=NOW_MS)
    before = {record.offset: record for record in log.records()}
    log.roll()
    log.clean()
    (batch,) = log.batches()
    assert batch.records == [before[1], before[2], before[3]]
    assert batch.header.codec == codec
    assert (batch.header.base_offset, batch.header.last_offset, batch.header.record_count) == (0, 3, 3)
    assert batch.header.base_timestamp == NOW_MS


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(log: CompactedLog) -> None:
    for codec in Codec:
        log.put((b"k%d" % codec, b"v"), (b"l%d" % codec, b"v"), codec=codec)
    before = log.batches()
    log.roll()
    log.clean()
    assert log.batches() == before


def test_max_timestamp_is_that_of_the_records_that_stay(log: CompactedLog) -> None:
    log.put((b"b", b"1"), (b"a", b"1"), (b"a", b"2"), timestamp=NOW_MS)
    log.put((b"a", b"3"), timestamp=NOW_MS)
    log.roll()
    log.clean()
    first = log.batches()[0]
    assert [record.key for record in first.records] == [b"b"]
    assert first.header.max_timestamp == NOW_MS
    assert log.log.offset_for_timestamp(NOW_MS + 1) is None


@pytest.mark.parametrize("value", [b"value", None])
def test_producer_that_counts_on_from_the_last_moment_makes_no_log_uncleanable(
    log: CompactedLog, value: bytes | None
) -> None:
    builder = BatchBuilder()
    for number, key in enumerate((b"old", b"kept", b"kept too")):
        builder.append(key, value, timestamp=number)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, BASE_TIMESTAMP_AT, LONG_MAX)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, LONG_MAX)
    struct.pack_into(">I", data, CRC_AT, compute_crc(data, 0, len(data) - LOG_OVERHEAD))
    log.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    log.put((b"old", b"new"))
    log.roll()
    assert log.clean() is not None
    assert log.values() == {b"kept": [value], b"kept too": [value], b"old": [b"new"]}
    found = log.log.offset_for_timestamp(LONG_MAX)
    assert found is not None and found.timestamp == LONG_MAX, "an answer has no room for more"


def test_append_time_of_a_batch_stays(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, replace(CONFIG, message_timestamp_type=LOG_APPEND_TIME))
    log.clock.advance_ms(77)
    log.put((b"a", b"1"), (b"a", None), (b"b", b"1"), timestamp=5)
    log.roll()
    log.clean()
    (batch,) = log.batches()
    assert batch.header.has_delete_horizon
    assert [(record.key, record.timestamp) for record in batch.records] == [(b"a", NOW_MS + 77), (b"b", NOW_MS + 77)]


def test_records_without_key_go(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, replace(CONFIG, cleanup_policy=frozenset({CLEANUP_DELETE})))
    log.put((None, b"1"), (b"a", b"1"), (None, b"2"))
    log.put((None, b"3"))
    log.put((b"b", b"1"))
    log.roll()
    log.log.update_config(CONFIG)
    done = log.clean()
    assert log.values() == {b"a": [b"1"], b"b": [b"1"]}
    assert done is not None and done.stats.invalid_records == 3


def test_long_keys_differ_by_their_digest(log: CompactedLog) -> None:
    long = [bytes([65 + number]) * size for number, size in enumerate((30, 31, 32, 63, 64, 65, 200))]
    log.put(*[(key, b"1") for key in long])
    log.put(*[(key, b"2") for key in long[::2]])
    log.roll()
    log.clean()
    assert log.values() == {key: [b"1"] if number % 2 else [b"2"] for number, key in enumerate(long)}


def test_records_of_every_size_are_walked(log: CompactedLog) -> None:
    sizes = (0, 1, 40, 60, 100, 300)
    log.put(*[(b"k%d" % size, b"v" * size) for size in sizes])
    log.put((b"k40", b""))
    big = replace(CONFIG, segment_bytes=1 << 20, max_message_bytes=1 << 20)
    log.log.update_config(big)
    log.put((b"big", b"v" * 20_000), (b"k1", b"new"), (b"big", b"w" * 70_000), timestamp=NOW_MS + 10**6)
    log.roll()
    log.clean()
    found = log.values()
    assert found.pop(b"big") == [b"w" * 70_000]
    assert found == {b"k0": [b""], b"k1": [b"new"], b"k40": [b""]} | {b"k%d" % n: [b"v" * n] for n in (60, 100, 300)}


def test_batches_of_one_record_are_walked_whatever_its_size(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, replace(CONFIG, segment_bytes=1 << 24, max_message_bytes=1 << 24))
    values = {
        b"v%d" % size: b"x" * size
        for size in (0, 1, 50, 51, 52, 53, 60, 8100, 8150, 8180, 8190, 8200, 1 << 20, 1 << 21)
    }
    keys = {b"k" * size: b"1" for size in (0, 1, 29, 30, 31, 62, 63, 64, 8200)}
    for _ in range(2):
        for key, value in (values | keys).items():
            log.put((key, value))
    log.put((b"v1", None))
    log.roll()
    log.clean()
    assert log.values() == {key: [value] for key, value in (values | keys).items()} | {b"v1": [None]}


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=70)), st.one_of(st.none(), st.binary(max_size=200))),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(-(2**40), 2**40), min_size=6, max_size=6),
)
def test_keys_are_those_that_the_codec_reads(pairs: list[tuple[bytes | None, bytes | None]], times: list[int]) -> None:
    builder = BatchBuilder()
    for (key, value), timestamp in zip(pairs, times, strict=False):
        builder.append(key, value, timestamp=timestamp)
    data = builder.build()
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    scan = scan_piece(data + data[:-1], keys, tombstones, first=0, transactions=None)
    assert scan.size_bytes == len(data)
    assert keys == [None if key is None else key_digest(key) for key, _ in pairs]
    assert tombstones == [number for number, (_, value) in enumerate(pairs) if value is None]
    starts = record_starts(data, 61, len(data), len(pairs))
    assert largest_timestamp_delta(data, starts[:-1]) == max(times[: len(pairs)]) - times[0]


#: Layouts of which neighbours are often alike: a key, a value, headers, and by how much the time goes on.
LAYOUTS = st.sampled_from(
    [
        (b"key-1", b"v" * 20, (), 1),
        (b"key-2", b"w" * 20, (), 50),
        (b"key-3", b"", (("h", b"12345"),), 9000),
        (b"key-4", None, (("h", b"12345"),), 1),
        (b"k" * 31, b"v" * 200, (), 0),
        (None, b"v" * 300, (), -70),
        (b"", b"v" * 9000, (), 1),
    ]
)


@given(st.lists(st.tuples(LAYOUTS, st.integers(1, 150)), min_size=1, max_size=5), st.data())
def test_records_of_one_layout_are_read_as_those_read_one_by_one(
    runs: list[tuple[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int], int]], draw: st.DataObject
) -> None:
    builder, timestamp, count = BatchBuilder(), NOW_MS, 0
    for (key, value, headers, step), times in runs:
        for _ in range(times):
            builder.append(key, value, timestamp=timestamp, headers=headers)
            timestamp += step
            count += 1
    data = bytearray(builder.build())
    for _ in range(draw.draw(st.integers(0, 2), "how many bytes are wrong")):
        data[draw.draw(st.integers(61, len(data) - 1))] = draw.draw(st.integers(0, 255))

    def read(run_min: int) -> tuple[list[bytes | None], list[int], list[int]] | None:
        keys: list[bytes | None] = []
        tombstones: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cleaner_scan, "RUN_MIN", run_min)
            try:
                cleaner_scan.scan_keys(bytes(data), 61, len(data), count, 7, keys, tombstones)
                return keys, tombstones, record_starts(bytes(data), 61, len(data), count)
            except Malformed:
                return None

    assert read(cleaner_scan.RUN_MIN) == read(count + 1)


# -- tombstones


def test_a_tombstone_stays_until_delete_retention_has_passed_since_its_first_cleaning(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"), timestamp=NOW_MS - 10**9)
    log.put((b"a", None), (b"c", b"1"), timestamp=NOW_MS - 10**9)
    log.put((b"z", b"last"))
    log.roll()
    log.clean()
    assert log.values() == {b"a": [None], b"b": [b"1"], b"c": [b"1"], b"z": [b"last"]}
    tombstone = next(batch for batch in log.batches() if batch.records[0].key == b"a")
    assert tombstone.header.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS
    assert [record.timestamp for record in tombstone.records] == [NOW_MS - 10**9, NOW_MS - 10**9 + 1]
    assert tombstone.header.max_timestamp == NOW_MS - 10**9 + 1

    log.clock.advance_ms(DELETE_RETENTION_MS - 1)
    assert log.log.config.min_cleanable_dirty_ratio == 0
    log.put((b"y", b"more"))
    log.roll()
    log.clean()
    assert log.values()[b"a"] == [None]

    log.clock.advance_ms(1)
    log.put((b"y", b"and more"))
    log.roll()
    log.clean()
    assert log.values() == {b"b": [b"1"], b"c": [b"1"], b"z": [b"last"], b"y": [b"and more"]}


def test_a_horizon_once_set_does_not_move(log: CompactedLog) -> None:
    log.put((b"a", None), (b"b", None))
    log.roll()
    log.clean()
    log.clock.advance_ms(5_000)
    log.put((b"b", b"back"))
    log.roll()
    log.clean()
    batch = log.batches()[0]
    assert [record.key for record in batch.records] == [b"a"]
    assert batch.header.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS


def test_a_batch_may_grow_past_max_message_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = CompactedLog(tmp_path)
    log.put(*[(b"%d" % number, None) for number in range(20)])
    before = log.batches()[0].header.size_bytes
    log.log.update_config(replace(CONFIG, max_message_bytes=before))
    log.roll()
    log.clean()
    (batch,) = log.batches()
    assert batch.header.size_bytes > before
    assert len(batch.records) == 20
    assert f"raise max.message.bytes={before}" in caplog.text


# -- producers


def test_the_last_batch_of_an_active_producer_stays_empty(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(7, 0, 0))
    log.put((b"a", b"2"), producer=(7, 0, 1))
    log.put((b"a", b"3"))
    log.put((b"z", b"last"))
    log.roll()
    log.clean()
    assert [(b.header.base_offset, b.header.record_count) for b in log.batches()] == [(1, 0), (2, 1), (3, 1)]
    empty = log.batches()[0].header
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (7, 0, 1, 1)
    assert (empty.size_bytes, empty.base_timestamp, empty.max_timestamp) == (61, -1, NOW_MS)

    log.put((b"b", b"4"), producer=(7, 0, 2))
    log.roll()
    log.clean()
    assert all(batch.records for batch in log.batches()), "a later batch has the producer's last sequence now"


def test_the_last_batch_of_a_round_stays_empty_so_that_its_end_is_known(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.roll()
    log.clean()
    log.put((b"b", None))
    log.roll()
    log.clean()
    log.clock.advance_ms(DELETE_RETENTION_MS + 1)
    log.checkpoint = 0
    log.clean()
    assert [(b.header.base_offset, b.header.record_count) for b in log.batches()] == [(0, 1), (1, 0)]


# -- transactions


def test_aborted_records_go_and_their_marker_after_them(log: CompactedLog) -> None:
    log.put((b"a", b"committed"))
    log.put((b"a", b"aborted"), producer=(1, 0, 0), transactional=True)
    log.end_txn(1, 0, commit=False)
    log.put((b"n", b"next"), producer=(1, 0, 1), transactional=True)
    log.end_txn(1, 0, commit=True)
    log.put((b"z", b"last"))
    log.roll()
    log.clean()
    assert log.values() == {b"a": [b"committed"], b"n": [b"next"], b"z": [b"last"]}
    assert [b.header.base_offset for b in log.batches()] == [0, 2, 3, 4, 5]
    assert [txn.first_offset for txn in log.log.aborted_transactions(0, 6)] == [1]

    more(log)
    marker = log.batches()[1].header
    assert marker.base_offset == 2 and marker.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS
    assert log.log.aborted_transactions(0, 6) == []

    log.clock.advance_ms(DELETE_RETENTION_MS)
    more(log)
    assert [b.header.base_offset for b in log.batches()][:4] == [0, 3, 4, 5]


def more(log: CompactedLog) -> None:
    log.put((b"more", b"more"))
    log.roll()
    log.clean()


def test_a_commit_marker_stays_while_a_record_of_its_transaction_does(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    log.end_txn(1, 0, commit=True)
    log.put((b"other", b"1"), producer=(1, 0, 1), transactional=True)
    log.end_txn(1, 0, commit=True)
    for _ in range(2):
        log.clock.advance_ms(DELETE_RETENTION_MS)
        more(log)
    assert [b.header.base_offset for b in log.batches()][:4] == [0, 1, 2, 3]
    log.put((b"a", b"2"))
    for _ in range(3):
        log.clock.advance_ms(DELETE_RETENTION_MS)
        more(log)
    assert [b.header.base_offset for b in log.batches()][:2] == [2, 3]


def test_the_last_marker_of_a_producer_without_data_keeps_its_epoch(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    log.end_txn(1, 1, commit=False)  # a coordinator that fences raises the epoch
    log.put((b"z", b"last"))
    log.roll()
    for _ in range(4):
        log.clock.advance_ms(DELETE_RETENTION_MS)
        log.checkpoint = 0
        log.clean()
    assert [(b.header.base_offset, b.header.record_count, b.header.is_control) for b in log.batches()] == [
        (1, 0, True),
        (2, 1, False),
    ]
    assert log.batches()[0].header.producer_epoch == 1


def test_nothing_of_an_open_transaction_or_after_it_is_cleaned(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    log.put((b"a", b"open"), producer=(1, 0, 0), transactional=True)
    log.roll()
    log.put((b"a", b"3"))
    log.roll()
    done = log.clean()
    assert done is not None and done.next_dirty_offset == 2
    assert log.values() == {b"a": [b"2", b"open", b"3"]}


def test_aborted_records_go_though_their_marker_is_in_the_active_segment(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", b"aborted"), producer=(1, 0, 0), transactional=True)
    log.put((b"b", b"1"))
    log.roll()
    log.end_txn(1, 0, commit=False)
    log.clean()
    assert log.values() == {b"a": [b"1"], b"b": [b"1"]}


def test_a_transaction_that_spans_segments_is_one(log: CompactedLog) -> None:
    for sequence in range(30):
        log.put((b"a", b"%d" % sequence), (b"k%d" % sequence, b"x"), producer=(1, 0, 2 * sequence), transactional=True)
        log.put((b"a", b"other %d" % sequence))
    log.end_txn(1, 0, commit=False)
    log.roll()
    assert len(log.log.segments) > 3
    log.clean()
    assert log.values() == {b"a": [b"other 29"]}


def test_an_abort_before_the_dirty_part_does_not_reach_into_it(log: CompactedLog) -> None:
    log.put((b"a", b"aborted"), producer=(1, 0, 0), transactional=True)
    log.end_txn(1, 0, commit=False)
    log.put((b"a", b"1"))
    more(log)
    log.put((b"a", b"2"), producer=(1, 0, 1), transactional=True)
    log.end_txn(1, 0, commit=True)
    more(log)
    assert log.values() == {b"a": [b"2"], b"more": [b"more"]}


# -- segments


def test_neighbours_become_one_segment_as_far_as_they_fit(log: CompactedLog) -> None:
    for number in range(100):
        log.put((b"%d" % (number % 10), b"v" * 50))
    log.roll()
    before = len(log.log.segments)
    log.clean()
    log.clean()
    log.checkpoint = 0
    log.clean()
    assert len(log.log.segments) == 2 < before
    assert sorted(log.values()) == sorted(b"%d" % number for number in range(10))
    for offset in range(101):
        found = log.log.segments.first.find(offset)
        assert found is None or found.last_offset >= offset


def test_the_cleaned_segment_is_as_old_as_the_last_that_it_replaces(log: CompactedLog) -> None:
    import os

    log.put((b"a", b"1"))
    log.roll()
    path = log.log.segments.first.log_path
    os.utime(path, (1_000_000, 1_000_000))
    log.clean()
    assert Path(path).stat().st_mtime == 1_000_000


def test_a_full_map_ends_the_pass_and_the_next_goes_on(log: CompactedLog) -> None:
    for number in range(60):
        log.put((b"k%d" % (number % 20), b"%d" % number))
    log.roll()
    tiny = replace(SETTINGS, dedupe_buffer_size=1200, io_buffer_size=300)
    ends = []
    while (done := log.clean(tiny)) is not None:
        ends.append(done.next_dirty_offset)
        assert done.stats.buffer_utilization <= 1
    assert ends == sorted(set(ends)) and len(ends) > 3
    assert ends[-1] == 60
    assert log.values() == {b"k%d" % (number % 20): [b"%d" % number] for number in range(40, 60)}


# -- damage


def test_a_flipped_bit_stops_the_cleaning_and_leaves_no_file(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"a", b"2"))
    log.put((b"b", b"1"), (b"b", b"2"))
    log.roll()
    path = Path(log.log.segments.first.log_path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Malformed, match="fails its CRC"):
        log.clean()
    assert not [name for name in log.files() if "cleaned" in name]
    log.checkpoint = 2  # the damaged batch is in the part that counts as clean
    log.put((b"c", b"1"))
    log.roll()
    with pytest.raises(Malformed, match="fails its CRC"):
        log.clean()
    assert not [name for name in log.files() if "cleaned" in name]


@pytest.mark.parametrize("cut", [5, 61, 80])
def test_a_file_that_is_too_short_stops_the_cleaning(log: CompactedLog, cut: int) -> None:
    log.put((b"a", b"1"), (b"a", b"2"))
    log.put((b"b", b"1"), (b"b", b"2"))
    log.roll()
    path = Path(log.log.segments.first.log_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(Malformed):
        log.clean()


def test_garbage_in_the_middle_stops_the_cleaning(log: CompactedLog) -> None:
    for number in range(8):
        log.put((b"a", b"%d" % number))
    log.roll()
    path = Path(log.log.segments.first.log_path)
    data = bytearray(path.read_bytes())
    for at in (8, 16, 200):
        broken = data.copy()
        broken[at : at + 4] = b"\xff\xff\xff\xff"
        path.write_bytes(broken)
        with pytest.raises(Malformed):
            log.clean()


def sealed(part: bytearray) -> bytes:
    part[CRC_AT:ATTRIBUTES_AT] = crc32c(part[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(part)


def test_a_record_alone_in_its_batch_must_end_with_it(engine: Engine) -> None:
    builder = BatchBuilder()
    builder.append(b"key", b"value", timestamp=0)
    part = bytearray(builder.build())
    part[HEADER_SIZE] -= 2
    with pytest.raises(Malformed, match="1 records end at"):
        engine.key_map(1 << 20, TransactionTracker(())).index(sealed(part))


def test_a_batch_that_claims_a_record_and_has_no_byte_of_it_is_refused(engine: Engine) -> None:
    builder = BatchBuilder()
    builder.append(b"key", b"value", timestamp=0)
    part = bytearray(builder.build())[:HEADER_SIZE]
    part[LENGTH_AT:LEADER_EPOCH_AT] = MIN_BATCH_LENGTH.to_bytes(4, "big")
    with pytest.raises(Malformed, match="1 records in 0 bytes"):
        engine.key_map(1 << 20, TransactionTracker(())).index(sealed(part))

"""Appends: a leader accepts, changes or refuses a client's batches; a follower takes over the leader's."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.config.log_config import CLEANUP_COMPACT, LOG_APPEND_TIME, LogConfig
from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.base.host.disk import Disk, ReadableBuffer
from barnabas.broker.storage.log_append import UnexpectedAppendOffset, records_max
from barnabas.broker.storage.log_types import InvalidRecords, Origin
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_FLAG,
    check_crc,
    compute_crc,
    read_header,
)
from barnabas.wire.records import BatchBuilder, end_txn_marker, iter_records
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition, batch, contents


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path)


def lead(partition: Partition, data: bytearray | memoryview, *, origin: Origin = Origin.CLIENT, epoch: int = 3):
    return partition.log.append_as_leader(data, leader_epoch=epoch, now_ms=NOW_MS, origin=origin)


def sum_again(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, CRC_AT, compute_crc(data, 0, len(data) - 12))
    return data


def patched(data: bytearray, at: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, at, value)
    return sum_again(data)


def only_batch(partition: Partition) -> bytes:
    log = partition.log
    return log.read(log.log_start_offset, max_bytes=1 << 20, max_offset=log.log_end_offset).read()


def refusal(partition: Partition, data: bytearray | memoryview, *, origin: Origin = Origin.CLIENT) -> Refused:
    """The batch is refused, and nothing was written."""
    before = partition.log.log_end_offset, partition.log.size_bytes
    with pytest.raises(Refused) as caught:
        lead(partition, data, origin=origin)
    assert (partition.log.log_end_offset, partition.log.size_bytes) == before
    return caught.value


def test_offsets_and_epoch_are_assigned_in_place(partition: Partition) -> None:
    lead(partition, batch([b"zero", b"one"]))
    data = batch([b"two", b"three", b"four"])
    info = lead(partition, data)
    assert (info.first_offset, info.last_offset, info.record_count) == (2, 4, 3)
    assert info.size_bytes == len(data)
    assert info.log_append_time_ms == -1
    assert not info.duplicate
    header = read_header(data)
    assert (header.base_offset, header.leader_epoch) == (2, 3)
    assert [(entry.offset, entry.value, entry.epoch) for entry in contents(partition.log)][2:] == [
        (2, b"two", 3),
        (3, b"three", 3),
        (4, b"four", 3),
    ]


def test_a_view_of_a_larger_buffer_is_written_without_its_surroundings(partition: Partition) -> None:
    inner = batch([b"inner"])
    buffer = bytearray(b"before") + inner + b"after"
    lead(partition, memoryview(buffer)[6 : 6 + len(inner)])
    assert buffer.startswith(b"before")
    assert buffer.endswith(b"after")
    assert [entry.value for entry in contents(partition.log)] == [b"inner"]


def test_a_torn_second_batch_is_cut_off(partition: Partition) -> None:
    first = batch([b"first"])
    lead(partition, first + batch([b"second"])[:40])
    assert [entry.value for entry in contents(partition.log)] == [b"first"]
    assert partition.log.size_bytes == len(first)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bytearray(), ErrorCode.INVALID_RECORD),
        (bytearray(11), ErrorCode.INVALID_RECORD),
        (bytearray(b"\0" * 16 + b"\2" + b"\0" * 30), ErrorCode.CORRUPT_MESSAGE),
        (batch([b"a"])[:-1], ErrorCode.INVALID_RECORD),
        (batch([b"a"])[:40], ErrorCode.INVALID_RECORD),
        (batch([b"a"]) + batch([b"b"]), ErrorCode.INVALID_RECORD),
        (batch([b"a"]) + bytes(61), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch([b"a"]), MAGIC_AT, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (patched(batch([b"a"]), MAGIC_AT, ">b", 0), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (patched(batch([b"a"]), MAGIC_AT, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch([b"a"]), 8, ">i", 48), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch([b"a"]), 8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
        (batch([b"x" * 2000]), ErrorCode.RECORD_LIST_TOO_LARGE),
    ],
    ids=[
        "nothing",
        "less than a length",
        "less than a header",
        "torn",
        "torn in its header",
        "two batches",
        "a second batch of zeros",
        "v1",
        "v0",
        "unknown magic",
        "length below the header",
        "negative length",
        "larger than a segment",
    ],
)
def test_bytes_that_are_not_one_batch_are_refused(partition: Partition, data: bytearray, code: ErrorCode) -> None:
    assert refusal(partition, data).code is code


def test_every_flipped_bit_under_the_crc_is_found(partition: Partition) -> None:
    good = batch([b"value"])
    for position in range(CRC_AT, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        assert refusal(partition, bad).code is ErrorCode.CORRUPT_MESSAGE, position


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (batch([b"a"], base_offset=7), "should be 0, but it is 7"),
        (patched(batch([b"a"]), LAST_OFFSET_DELTA_AT, ">i", -1), "invalid offset range"),
        (patched(batch([b"a"]), RECORD_COUNT_AT, ">i", 0), "Invalid reported count"),
        (patched(batch([b"a"]), RECORD_COUNT_AT, ">i", 2), "Inconsistent batch offset range"),
        (patched(batch([b"a"], producer_id=4, producer_epoch=0, sequence=0), BASE_SEQUENCE_AT, ">i", -1), "sequence"),
        (
            bytearray(end_txn_marker(commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=1)),
            "not allowed to write control records",
        ),
    ],
    ids=["base offset", "negative delta", "no records", "count", "sequence", "control"],
)
def test_batches_that_only_clients_must_not_send_are_refused(partition: Partition, data: bytearray, words: str) -> None:
    error = refusal(partition, data)
    assert error.code is ErrorCode.INVALID_RECORD
    assert words in str(error)


def test_an_unknown_codec_is_refused(partition: Partition) -> None:
    """No consumer could read past it."""
    assert (
        refusal(partition, patched(batch([b"a"]), ATTRIBUTES_AT, ">h", 5)).code
        is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def test_a_coordinator_may_write_control_batches(partition: Partition) -> None:
    marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=NOW_MS)
    assert lead(partition, bytearray(marker), origin=Origin.COORDINATOR).last_offset == 0


def test_a_batch_above_max_message_bytes_is_refused(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(max_message_bytes=100))
    assert lead(partition, batch([b"x" * 20])).last_offset == 0
    assert refusal(partition, batch([b"x" * 50])).code is ErrorCode.MESSAGE_TOO_LARGE


# -- timestamps


def test_log_append_time_stamps_the_batch_and_keeps_its_records(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(message_timestamp_type=LOG_APPEND_TIME))
    info = lead(partition, batch([b"a", b"b"], timestamp=5, codec=Codec.LZ4))
    assert info.log_append_time_ms == NOW_MS
    data = only_batch(partition)
    header = read_header(data)
    check_crc(data, 0, header)
    assert header.max_timestamp == NOW_MS
    assert [(record.timestamp, record.value) for record in iter_records(data)] == [(NOW_MS, b"a"), (NOW_MS, b"b")]


def test_a_producer_must_not_claim_log_append_time(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(message_timestamp_type=LOG_APPEND_TIME))
    data = batch([b"a", b"b"])
    error = refusal(partition, patched(data, ATTRIBUTES_AT, ">h", TIMESTAMP_TYPE_FLAG))
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [record.batch_index for record in error.record_errors] == [0, 1]


def test_a_claim_of_log_append_time_is_corrected_where_the_topic_keeps_create_time(partition: Partition) -> None:
    lead(partition, patched(batch([b"a"]), ATTRIBUTES_AT, ">h", TIMESTAMP_TYPE_FLAG))
    data = only_batch(partition)
    assert read_header(data).timestamp_type == 0
    check_crc(data, 0, read_header(data))


@pytest.mark.parametrize(
    ("limits", "timestamp", "refused"),
    [
        ({"message_timestamp_before_max_ms": 1000}, NOW_MS - 1000, []),
        ({"message_timestamp_before_max_ms": 1000}, NOW_MS - 1002, [0, 1]),
        ({"message_timestamp_before_max_ms": 1000}, NOW_MS - 1001, [0]),
        ({"message_timestamp_after_max_ms": 1000}, NOW_MS + 998, []),
        ({"message_timestamp_after_max_ms": 1000}, NOW_MS + 999, [2]),
    ],
)
def test_timestamps_out_of_range_are_named_record_by_record(
    tmp_path: Path, limits: dict[str, int], timestamp: int, refused: list[int]
) -> None:
    partition = Partition(tmp_path, LogConfig(**limits))
    data = batch([b"a", b"b", b"c"], timestamp=timestamp, codec=Codec.GZIP)
    if not refused:
        assert lead(partition, data).record_count == 3
        return
    error = refusal(partition, data)
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [record.batch_index for record in error.record_errors] == refused
    assert "is out of range" in error.record_errors[0].message


# -- keys and codecs


def test_a_compacted_topic_refuses_records_without_a_key(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(cleanup_policy=frozenset({CLEANUP_COMPACT})))
    assert lead(partition, batch([b"a"], key=b"k", codec=Codec.SNAPPY)).last_offset == 0
    error = refusal(partition, batch([b"a", b"b"], codec=Codec.SNAPPY))
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [record.batch_index for record in error.record_errors] == [0, 1]
    assert "without key" in error.record_errors[0].message


def test_records_that_cannot_be_decoded_are_refused_where_they_must_be(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(cleanup_policy=frozenset({CLEANUP_COMPACT})))
    garbage = batch([b"a" * 50], key=b"k", codec=Codec.ZSTD)
    garbage[70:75] = b"\xff" * 5
    assert refusal(partition, sum_again(garbage)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("compression_type", "codec"),
    [
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
        ("uncompressed", Codec.NONE),
    ],
)
@pytest.mark.parametrize("source", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_the_topics_codec_replaces_the_producers(
    tmp_path: Path, compression_type: str, codec: Codec, source: Codec
) -> None:
    partition = Partition(tmp_path, LogConfig(compression_type=compression_type))
    info = lead(partition, batch([b"value" * 10, b"other"], codec=source, timestamp=77))
    data = only_batch(partition)
    header = read_header(data)
    check_crc(data, 0, header)
    assert header.codec == codec
    assert (header.max_timestamp, header.record_count, header.leader_epoch) == (78, 2, 3)
    assert [(r.offset, r.timestamp, r.value) for r in iter_records(data)] == [(0, 77, b"value" * 10), (1, 78, b"other")]
    assert info.recompressed is (codec != source)
    assert info.size_bytes == len(data)


def test_recompression_that_grows_past_the_limit_is_refused(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(compression_type="uncompressed", max_message_bytes=300))
    assert refusal(partition, batch([b"x" * 500], codec=Codec.GZIP)).code is ErrorCode.MESSAGE_TOO_LARGE


def test_garbage_is_not_recompressed(tmp_path: Path) -> None:
    partition = Partition(tmp_path, LogConfig(compression_type="gzip"))
    data = patched(batch([b"aaaa", b"bbbb"]), 61, ">b", 0x7F)
    assert refusal(partition, data).code is ErrorCode.INVALID_RECORD


# -- producers


def idempotent(sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return batch(values or (b"value",), producer_id=42, producer_epoch=epoch, sequence=sequence)


def test_a_duplicate_gets_the_offsets_of_the_first_time_and_is_not_written(partition: Partition) -> None:
    lead(partition, batch([b"someone else's"]))
    first = lead(partition, idempotent(0, b"a", b"b"))
    lead(partition, idempotent(2, b"c"))
    size = partition.log.size_bytes
    again = lead(partition, idempotent(0, b"a", b"b"))
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset) == (1, 2)
    assert (partition.log.size_bytes, partition.log.log_end_offset) == (size, 4)


def test_a_gap_in_the_sequence_is_refused_and_leaves_no_trace(partition: Partition) -> None:
    lead(partition, idempotent(0, b"a"))
    assert refusal(partition, idempotent(2)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert lead(partition, idempotent(1)).last_offset == 1


def test_an_older_producer_epoch_is_fenced(partition: Partition) -> None:
    lead(partition, idempotent(0, epoch=5))
    assert refusal(partition, idempotent(1, epoch=4)).code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_remembered_over_a_restart(partition: Partition, clean: bool) -> None:
    for sequence in range(30):
        lead(partition, idempotent(sequence))
    assert len(partition.log.segments) > 1
    if clean:
        partition.reopen()
    else:
        partition.crash()
    assert lead(partition, idempotent(29)).duplicate
    assert refusal(partition, idempotent(40)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert lead(partition, idempotent(30)).last_offset == 30


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_unknown_producer_may_begin_anywhere(partition: Partition, epoch: int) -> None:
    """Its state may have gone with its records: by retention, by compaction, by expiry before a restart."""
    assert lead(partition, idempotent(5), epoch=epoch).first_offset == 0
    future = batch([b"value"], timestamp=NOW_MS + 10 * 86_400_000, producer_id=43, producer_epoch=0, sequence=7)
    assert lead(partition, future, epoch=epoch).first_offset == 1
    partition.reopen()
    third = batch([b"value"], producer_id=44, producer_epoch=0, sequence=9)
    assert lead(partition, third, epoch=epoch).first_offset == 2


def test_a_producer_of_which_compaction_left_nothing_may_go_on(partition: Partition) -> None:
    """Recovery of a compacted log finds producers only where records of theirs are left."""
    partition.log.append_as_follower(batch([b"kept"], base_offset=9, leader_epoch=1), now_ms=NOW_MS)
    partition.crash()
    assert partition.log.log_start_offset == 0
    assert lead(partition, idempotent(6)).first_offset == 10


def test_producer_may_repeat_batches_that_the_snapshot_of_a_clean_stop_lacks(partition: Partition) -> None:
    for sequence in range(5):
        lead(partition, idempotent(sequence))
    partition.reopen()
    repeated = lead(partition, idempotent(2))
    assert repeated.duplicate
    assert (repeated.first_offset, repeated.last_offset) == (-1, 3), "where is not known, but it is below offset 4"
    assert lead(partition, idempotent(4)).first_offset == 4
    assert refusal(partition, idempotent(6)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(5, 9):
        lead(partition, idempotent(sequence))
    assert refusal(partition, idempotent(3)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "no producer has six batches in flight"
    )


def test_a_producer_may_repeat_all_batches_in_flight_when_the_broker_died(partition: Partition) -> None:
    for sequence in range(5):
        lead(partition, idempotent(sequence))
    partition.crash()
    for sequence in range(5):
        assert lead(partition, idempotent(sequence)).duplicate
    assert lead(partition, idempotent(5)).last_offset == 5


def test_truncation_takes_producers_back(partition: Partition) -> None:
    for sequence in range(30):
        lead(partition, idempotent(sequence))
    partition.log.truncate_to(10)
    assert refusal(partition, idempotent(30)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert lead(partition, idempotent(10)).first_offset == 10


def test_silent_producers_are_forgotten(partition: Partition) -> None:
    lead(partition, idempotent(0))
    assert partition.log.expire_producers(NOW_MS + 86_400_000 - 1) == 0
    assert partition.log.expire_producers(NOW_MS + 86_400_000) == 1
    assert lead(partition, idempotent(17)).first_offset == 1


# -- followers


def test_a_follower_keeps_offsets_epochs_and_gaps(partition: Partition) -> None:
    data = batch([b"a", b"b"], base_offset=0, leader_epoch=2) + batch([b"c"], base_offset=7, leader_epoch=5)
    info = partition.log.append_as_follower(data, now_ms=NOW_MS)
    assert info is not None
    assert (info.first_offset, info.last_offset, info.record_count) == (0, 7, 3)
    assert [(e.offset, e.epoch) for e in contents(partition.log)] == [(0, 2), (1, 2), (7, 5)]
    assert [tuple(entry) for entry in partition.log.epochs.entries] == [(2, 0), (5, 7)]
    assert partition.log.log_end_offset == 8


def test_a_follower_takes_more_at_once_than_a_segment_may_hold(partition: Partition) -> None:
    """`segment.bytes` was larger when the leader wrote them. A follower that refuses them never catches up."""
    partition.log.append_as_follower(batch([b"first"]), now_ms=NOW_MS)
    several = b"".join(batch([b"x" * 900], base_offset=1 + number) for number in range(4))
    large = batch([b"y" * 3000], base_offset=5)
    for data in (several, large):
        assert len(data) > partition.config.segment_bytes
        partition.log.append_as_follower(data, now_ms=NOW_MS)
    assert [entry.offset for entry in contents(partition.log)] == [0, 1, 2, 3, 4, 5]
    partition.crash()
    assert [entry.offset for entry in contents(partition.log)] == [0, 1, 2, 3, 4, 5]


def test_a_follower_ignores_a_torn_batch_at_the_end(partition: Partition) -> None:
    data = batch([b"a"]) + batch([b"b"], base_offset=1)[:-3]
    info = partition.log.append_as_follower(bytes(data), now_ms=NOW_MS)
    assert info is not None
    assert info.last_offset == 0
    assert partition.log.append_as_follower(data[:30], now_ms=NOW_MS) is None
    assert partition.log.append_as_follower(b"", now_ms=NOW_MS) is None


@pytest.mark.parametrize(
    "data",
    [
        batch([b"again"], base_offset=2),
        batch([b"x"], base_offset=5) + batch([b"y"], base_offset=4),
        batch([b"x", b"y"], base_offset=5) + batch([b"z"], base_offset=6),
    ],
    ids=["below the log end", "backwards", "overlapping"],
)
def test_a_follower_refuses_batches_that_do_not_follow(partition: Partition, data: bytearray) -> None:
    partition.append(b"0", b"1", b"2")
    with pytest.raises(UnexpectedAppendOffset) as caught:
        partition.log.append_as_follower(data, now_ms=NOW_MS)
    assert caught.value.log_end_offset == 3
    assert partition.log.log_end_offset == 3


def test_a_follower_checks_every_crc_before_it_writes_anything(partition: Partition) -> None:
    bad = batch([b"bad"], base_offset=1)
    bad[-2] ^= 1
    with pytest.raises(Refused) as caught:
        partition.log.append_as_follower(batch([b"good"]) + bad, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert partition.log.log_end_offset == 0


def test_a_follower_learns_of_producers_from_its_leader(tmp_path: Path, partition: Partition) -> None:
    data = idempotent(0, b"a") + patched(idempotent(1, b"b"), 0, ">q", 1)
    partition.log.append_as_follower(data, now_ms=NOW_MS)
    assert lead(partition, idempotent(1, b"b")).duplicate


# -- failing disks


class FullDisk(Disk):
    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = 1 << 30

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        if len(data) > self.room:
            if self.room == 0:
                raise OSError(28, "No space left on device")
            data = memoryview(data)[: self.room]
        self.room -= len(data)
        return super().pwrite(fd, data, position)


def test_a_short_write_is_continued_and_a_full_disk_is_a_fault(tmp_path: Path) -> None:
    disk = FullDisk()
    partition = Partition(tmp_path, disk=disk)
    partition.append(b"fits")
    disk.room = 20
    with pytest.raises(LogDirFault):
        partition.append(b"does not fit")
    assert len(partition.faults) == 1
    assert partition.faults[0].log_dir == str(tmp_path)
    disk.room = 1 << 30
    # The torn write lies behind the log's end: it is not read, and recovery cuts it.
    assert [entry.value for entry in contents(partition.log)] == [b"fits"]
    assert [entry.value for entry in contents(partition.crash(recovery_point=0))] == [b"fits"]


def test_a_closed_log_answers_storage_error(partition: Partition) -> None:
    partition.log.close()
    assert refusal(partition, batch([b"late"])).code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(Refused):
        partition.log.append_as_follower(batch([b"late"]), now_ms=NOW_MS)


def test_settings_take_effect_with_the_next_append(partition: Partition) -> None:
    partition.log.update_config(replace(partition.config, max_message_bytes=60))
    assert refusal(partition, batch([b"a"])).code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
def test_densest_batch_that_can_be_is_accepted_and_one_that_claims_more_is_not(tmp_path: Path, codec: Codec) -> None:
    """Null keys and values, all timestamps equal: as much as a codec can make of it."""
    partition = Partition(tmp_path, LogConfig(max_message_bytes=1 << 30))
    builder = BatchBuilder(codec=codec)
    count = 20_000
    for _ in range(count):
        builder.append(None, None, timestamp=1)
    dense = builder.build()
    most = records_max(read_header(dense))
    assert lead(partition, bytearray(dense)).record_count == count <= most
    struct.pack_into(">i", lie := bytearray(dense), LAST_OFFSET_DELTA_AT, most)
    with pytest.raises(Refused, match="cannot hold"):
        lead(partition, patched(lie, RECORD_COUNT_AT, ">i", most + 1))


def test_follower_that_gets_a_damaged_batch_with_its_log_start_inside_stays_where_it_is(tmp_path: Path) -> None:
    """Its log began with the batch before anybody had looked at it, and ended below its start. The next answer, without a
    record, stopped the broker: no high watermark fits into such a log."""
    partition = Partition(tmp_path)
    log = partition.log
    log.truncate_fully_and_start_at(150)
    sent = batch([b"x"] * 100, base_offset=100, leader_epoch=3)
    damaged = bytearray(sent)
    damaged[-1] ^= 1
    with pytest.raises(Refused):
        log.append_as_follower(damaged, now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (150, 150, 150)
    log.append_as_follower(sent[:-5], now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (150, 150, 150)
    log.append_as_follower(sent, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (150, 200)
    assert [entry.offset for entry in contents(log)] == list(range(150, 200))

"""The v2 header, read in place: fields, bounds, CRC, patches."""

import struct
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.wire import record_batch as rb
from barnabas.wire.compression import Codec
from barnabas.wire.records import BatchBuilder, iter_records


def a_batch(*, base_offset: int = 100, records: int = 3, **kwargs: object) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, **kwargs)  # type: ignore[arg-type]
    for number in range(records):
        builder.append(b"k%d" % number, b"v%d" % number, timestamp=1_000 + number)
    return builder.build()


def test_header_has_the_fields_of_the_builder():
    batch = a_batch(
        base_offset=100,
        records=3,
        codec=Codec.ZSTD,
        leader_epoch=7,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
        transactional=True,
        delete_horizon_ms=777,
    )
    header = rb.read_header(batch)
    assert header.base_offset == 100
    assert header.last_offset == 102
    assert header.next_offset == 103
    assert header.size_bytes == len(batch)
    assert header.leader_epoch == 7
    assert header.codec == Codec.ZSTD
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
    assert header.last_sequence == 7
    assert header.is_transactional
    assert not header.is_control
    assert header.timestamp_type == rb.CREATE_TIME
    assert header.delete_horizon_ms == 777
    assert header.max_timestamp == 1_002
    assert header.record_count == 3


def test_batch_without_delete_horizon_has_none():
    header = rb.read_header(a_batch())
    assert not header.has_delete_horizon
    assert header.delete_horizon_ms is None
    assert header.last_sequence == rb.NO_SEQUENCE


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [(0, 0, 0), (0, 5, 5), (2**31 - 1, 1, 0), (2**31 - 1, 3, 2), (2**31 - 3, 2, 2**31 - 1), (2**31 - 3, 3, 0)],
)
def test_sequences_wrap_from_the_largest_int32_to_zero(sequence: int, increment: int, expected: int):
    assert rb.increment_sequence(sequence, increment) == expected
    assert rb.decrement_sequence(expected, increment) == sequence


def test_last_sequence_wraps_inside_a_batch():
    header = rb.read_header(a_batch(records=3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_crc_covers_attributes_to_end_and_nothing_before():
    batch = bytearray(a_batch())
    header = rb.read_header(batch)
    assert rb.crc_ok(batch, 0, header)
    for at in range(len(batch)):
        flipped = bytearray(batch)
        flipped[at] ^= 0x10
        if at < rb.LENGTH_AT or rb.LEADER_EPOCH_AT <= at < rb.MAGIC_AT:
            assert rb.crc_ok(flipped, 0, rb.read_header(flipped)), at
        elif at >= rb.CRC_AT:
            assert not rb.crc_ok(flipped, 0, rb.read_header(flipped)), at
    with pytest.raises(Malformed, match=r"stored crc \d+, computed \d+"):
        batch[-1] ^= 1
        rb.check_crc(batch, 0, rb.read_header(batch))


def test_patching_offset_and_epoch_leaves_the_crc_valid():
    data = bytearray(b"junk" + a_batch())
    data[4:12] = (5_000).to_bytes(8)
    data[4 + rb.LEADER_EPOCH_AT : 8 + rb.LEADER_EPOCH_AT] = (42).to_bytes(4)
    header = rb.read_header(data, 4)
    assert (header.base_offset, header.leader_epoch) == (5_000, 42)
    assert rb.crc_ok(data, 4, header)
    assert [record.offset for record in iter_records(data, 4)] == [5_000, 5_001, 5_002]
    assert data[:4] == b"junk"


def test_log_append_time_makes_every_record_read_as_appended_then():
    data = bytearray(a_batch())
    rb.patch_max_timestamp(data, 0, 9_999, log_append_time=True)
    header = rb.read_header(data)
    assert header.timestamp_type == rb.LOG_APPEND_TIME
    assert rb.crc_ok(data, 0, header)
    assert {record.timestamp for record in iter_records(data)} == {9_999}
    rb.patch_max_timestamp(data, 0, 1_002, log_append_time=False)
    assert bytes(data) == a_batch()


def test_patch_that_changes_nothing_writes_nothing():
    batch = a_batch()
    read_only = memoryview(batch)
    rb.patch_max_timestamp(read_only, 0, 1_002, log_append_time=False)


def test_iterating_gives_positions_and_headers():
    first, second = a_batch(base_offset=0), a_batch(base_offset=3, records=1)
    data = b"xx" + first + second
    found = list(rb.iter_batches(data, 2))
    assert [position for position, _ in found] == [2, 2 + len(first)]
    assert [header.base_offset for _, header in found] == [0, 3]
    assert list(rb.iter_batches(b"")) == []


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("length", [34, 200])
def test_old_message_formats_are_recognised_and_refused(magic: int, length: int):
    message = bytearray(length)
    struct.pack_into(">qi", message, 0, 0, length - 12)
    message[rb.MAGIC_AT] = magic
    with pytest.raises(Malformed, match=f"message format v{magic} of Kafka before 0.11"):
        list(rb.iter_batches(bytes(message)))


def test_unknown_magic_is_refused():
    batch = bytearray(a_batch())
    batch[rb.MAGIC_AT] = 3
    with pytest.raises(Malformed, match="unknown magic 3"):
        rb.read_header(batch)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_impossible_lengths_are_refused(length: int):
    batch = bytearray(a_batch())
    struct.pack_into(">i", batch, rb.LENGTH_AT, length)
    with pytest.raises(Malformed):
        list(rb.iter_batches(batch))


@given(cut=st.integers(min_value=1))
@settings(deadline=None)
def test_torn_tail_gives_the_batches_before_it_then_malformed(cut: int):
    first, second = a_batch(base_offset=0), a_batch(base_offset=3)
    torn = first + second[: 1 + cut % (len(second) - 1)]
    batches = rb.iter_batches(torn)
    assert next(batches)[1].base_offset == 0
    with pytest.raises(Malformed):
        next(batches)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_garbage_raises_nothing_but_malformed(data: bytes):
    try:
        for position, header in rb.iter_batches(data):
            rb.crc_ok(data, position, header)
    except Malformed:
        return


def test_reading_a_header_takes_about_a_microsecond_at_most():
    batch = a_batch()
    best = min(timeit.repeat(lambda: rb.read_header(batch, 0), number=2_000, repeat=7)) / 2_000
    assert best < 3e-6  # 0.35 us on a quiet machine; generous, since this one may be busy

"""Message sets of before Kafka 0.11, with kafka-python's codec as the second opinion."""

import zlib
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from barnabas.core.errors import ErrorCode, Malformed, Refused
from barnabas.protocol.compression import Codec
from barnabas.protocol.message_set import batch_of, is_message_set, message_set_of
from barnabas.protocol.record_batch import NO_TIMESTAMP, read_header
from barnabas.protocol.records import BatchBuilder, end_txn_marker, iter_records, validate_records

RECORDS: list[tuple[bytes | None, bytes | None]] = [(b"k0", b"v" * 200), (None, b"v1"), (b"gone", None), (b"", b"")]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def made_by_kafka_python(magic: int, codec: Codec) -> bytearray:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset, (key, value) in enumerate(RECORDS):
        builder.append(offset, timestamp=1_000 + offset, key=key, value=value)
    return bytearray(builder.build())


def read_by_kafka_python(message_set: bytes, magic: int) -> list[Any]:
    found = []
    pos = 0
    while pos < len(message_set):
        stop = pos + 12 + int.from_bytes(message_set[pos + 8 : pos + 12])
        batch = LegacyRecordBatch(message_set[pos:stop], magic)
        assert batch.validate_crc()
        found += list(batch)
        pos = stop
    return found


def stored(codec: Codec, *, base_offset: int = 100, log_append_time_ms: int | None = None) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, codec=codec, log_append_time_ms=log_append_time_ms)
    for number, (key, value) in enumerate(RECORDS):
        builder.append(key, value, timestamp=1_000 + number, headers=[("h", b"1")])
    return builder.build()


@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in CODECS if (magic, codec) != (0, Codec.LZ4)]
)
def test_producers_message_set_becomes_one_batch(magic: int, codec: Codec) -> None:
    """But for lz4 in magic 0, which had a wrong checksum then (KAFKA-3160)."""
    sent = made_by_kafka_python(magic, codec)
    assert is_message_set(sent)
    batch = batch_of(memoryview(sent))
    header = read_header(batch)
    validate_records(batch, 0, header)
    assert not is_message_set(batch)
    assert (header.codec, header.size_bytes, header.producer_id) == (codec, len(batch), -1)
    records = list(iter_records(batch))
    assert [(record.key, record.value) for record in records] == RECORDS
    expected = [1_000 + number if magic else NO_TIMESTAMP for number in range(len(RECORDS))]
    assert [record.timestamp for record in records] == expected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_older_consumer_reads_batches_as_a_message_set(magic: int, codec: Codec) -> None:
    batches = stored(codec) + stored(codec, base_offset=104)
    found = read_by_kafka_python(message_set_of(batches, magic=magic, from_offset=100), magic)
    assert [record.offset for record in found] == list(range(100, 108))
    assert [(record.key, record.value) for record in found] == RECORDS * 2
    expected = [1_000 + number if magic else None for number in range(len(RECORDS))] * 2
    assert [record.timestamp for record in found] == expected


def test_append_time_is_told_as_such() -> None:
    batch = stored(Codec.GZIP, log_append_time_ms=5_000)
    found = read_by_kafka_python(message_set_of(batch, magic=1, from_offset=100), 1)
    assert {(record.timestamp, record.timestamp_type) for record in found} == {(5_000, 1)}


def test_plain_messages_below_the_offset_are_left_out() -> None:
    found = read_by_kafka_python(message_set_of(stored(Codec.NONE), magic=1, from_offset=102), 1)
    assert [record.offset for record in found] == [102, 103]


def test_control_records_are_left_out() -> None:
    marker = end_txn_marker(producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=1_000)
    batches = stored(Codec.NONE) + marker
    assert message_set_of(batches, magic=1, from_offset=0) == message_set_of(stored(Codec.NONE), magic=1, from_offset=0)


def test_zstd_is_refused_where_it_comes_first_and_ends_the_set_elsewhere() -> None:
    with pytest.raises(Refused) as refused:
        message_set_of(stored(Codec.ZSTD), magic=1, from_offset=0)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    plain = stored(Codec.NONE)
    both = plain + stored(Codec.ZSTD, base_offset=104)
    assert message_set_of(both, magic=1, from_offset=0) == message_set_of(plain, magic=1, from_offset=0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_bit_and_every_cut_is_noticed(magic: int, codec: Codec) -> None:
    whole = made_by_kafka_python(magic, codec)
    starts = {0} | _message_ends(whole)
    offsets = {start + at for start in starts for at in range(8)}  # the log's to give, and not looked at
    for at in set(range(len(whole))) - offsets:
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        with pytest.raises(Malformed):
            batch_of(damaged)
    for end in set(range(1, len(whole))) - starts:
        with pytest.raises(Malformed):
            batch_of(whole[:end])
    with pytest.raises(Malformed, match="without a message"):
        batch_of(b"")


def _message_ends(message_set: bytes | bytearray) -> set[int]:
    ends, pos = set(), 0
    while pos < len(message_set):
        pos += 12 + int.from_bytes(message_set[pos + 8 : pos + 12])
        ends.add(pos)
    return ends


def wrapped(inner: bytes, attributes: int) -> bytes:
    body = bytes([1, attributes]) + bytes(8) + b"\xff\xff\xff\xff" + len(inner).to_bytes(4) + inner
    return bytes(8) + (len(body) + 4).to_bytes(4) + zlib.crc32(body).to_bytes(4) + body


@pytest.mark.parametrize("attributes", [4, 5, 7], ids=["zstd", "5", "7"])
def test_codec_that_no_message_set_has_is_refused(attributes: int) -> None:
    with pytest.raises(Malformed, match="codec"):
        batch_of(wrapped(b"x", attributes))


def test_compressed_message_inside_of_a_compressed_one_is_refused() -> None:
    inner = made_by_kafka_python(1, Codec.GZIP)
    with pytest.raises(Malformed, match="inside"):
        batch_of(wrapped(zlib.compress(inner, wbits=31), Codec.GZIP))
    with pytest.raises(Malformed, match="without messages"):
        batch_of(wrapped(zlib.compress(b"", wbits=31), Codec.GZIP))

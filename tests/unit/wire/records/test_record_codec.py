"""Records: round trips, strictness, control records, emptied batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.wire import record_batch as rb
from barnabas.wire import record_decode
from barnabas.wire import records as rc
from barnabas.wire.compression import Codec, compress, decompress
from barnabas.wire.varint import encode_varint

optional_bytes = st.none() | st.binary(max_size=200)
header_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
record_fields = st.tuples(
    optional_bytes,
    optional_bytes,
    st.integers(0, 2**42),
    st.lists(st.tuples(header_text, optional_bytes), max_size=3),
    st.integers(1, 200),
)


@given(
    pairs=st.lists(st.tuples(st.binary(max_size=9000), st.none() | st.binary(max_size=9000)), min_size=1, max_size=5),
    producer=st.sampled_from([(-1, -1), (7, 3)]),
)
@settings(deadline=None, max_examples=60)
def test_plain_batch_is_the_builders_byte_for_byte(pairs, producer):
    producer_id, producer_epoch = producer
    is_transactional = producer_id >= 0
    builder = rc.BatchBuilder(producer_id=producer_id, producer_epoch=producer_epoch, transactional=is_transactional)
    for key, value in pairs:
        builder.append(key, value, timestamp=1_700_000_000_000)
    assert builder.build() == rc.plain_batch(
        pairs,
        timestamp=1_700_000_000_000,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=is_transactional,
    )


@given(
    fields=st.lists(record_fields, min_size=1, max_size=20),
    codec=st.sampled_from(list(Codec)),
    base_offset=st.integers(0, 2**50),
    base_sequence=st.integers(0, 2**31 - 1),
)
@settings(deadline=None, max_examples=60)
def test_built_records_are_read_back(fields, codec, base_offset, base_sequence):
    builder = rc.BatchBuilder(
        base_offset=base_offset, codec=codec, producer_id=1, producer_epoch=0, base_sequence=base_sequence
    )
    expected = []
    offset = base_offset - 1
    for key, value, timestamp, headers, gap in fields:
        offset += gap
        builder.append(key, value, timestamp=timestamp, headers=headers, offset=offset)
        sequence = rb.increment_sequence(base_sequence, offset - base_offset)
        expected.append(rc.Record(offset, timestamp, key, value, tuple(headers), sequence))
    batch = builder.build()
    header = rb.read_header(batch)
    assert rb.crc_ok(batch, 0, header)
    assert header.record_count == len(builder) == len(fields)
    assert header.max_timestamp == max(record.timestamp for record in expected)
    assert list(rc.iter_records(batch)) == expected
    body = rc.records_body(batch, 0, header)
    spans = list(rc.iter_keys(body, header))
    assert [(base_offset + span.offset_delta, span.key, span.has_value) for span in spans] == [
        (record.offset, record.key, record.value is not None) for record in expected
    ]
    assert b"".join(body[span.start : span.stop] for span in spans) == body


def test_header_keys_that_are_not_utf8_survive():
    raw = b"\xff\xfe"
    builder = rc.BatchBuilder()
    builder.append(None, None, timestamp=0, headers=[(raw.decode("utf-8", "surrogateescape"), b"x")])
    (record,) = rc.iter_records(builder.build())
    assert record.headers[0][0].encode("utf-8", "surrogateescape") == raw


def test_builder_refuses_an_offset_that_goes_back():
    builder = rc.BatchBuilder(base_offset=10)
    builder.append(None, b"", timestamp=0, offset=12)
    with pytest.raises(ValueError, match="below the next one, 13"):
        builder.append(None, b"", timestamp=0, offset=12)


def test_delete_horizon_is_the_base_timestamp_and_timestamps_stay():
    builder = rc.BatchBuilder(delete_horizon_ms=5_000, last_offset=9)
    builder.append(b"k", None, timestamp=100, offset=4)
    batch = builder.build()
    header = rb.read_header(batch)
    assert header.base_timestamp == header.delete_horizon_ms == 5_000
    assert (header.base_offset, header.last_offset) == (0, 9)
    assert next(rc.iter_records(batch)).timestamp == 100


def test_emptied_batch_keeps_offsets_producer_and_flags():
    builder = rc.BatchBuilder(
        base_offset=7, codec=Codec.GZIP, producer_id=3, producer_epoch=1, base_sequence=20, transactional=True
    )
    builder.append(b"a", b"b", timestamp=50)
    builder.append(b"a", b"c", timestamp=60)
    original = rb.read_header(builder.build())
    empty = rc.empty_batch(original)
    header = rb.read_header(empty)
    assert len(empty) == rb.HEADER_SIZE
    assert rb.crc_ok(empty, 0, header)
    assert (header.base_offset, header.last_offset, header.last_sequence) == (7, 8, 21)
    assert (header.producer_id, header.producer_epoch, header.is_transactional) == (3, 1, True)
    assert (header.codec, header.record_count, header.base_timestamp, header.max_timestamp) == (0, 0, -1, 60)
    assert list(rc.iter_records(empty)) == []


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_marker_round_trips(commit: bool):
    batch = rc.end_txn_marker(
        commit=commit, coordinator_epoch=4, producer_id=11, producer_epoch=2, timestamp=123, base_offset=40
    )
    header = rb.read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == rb.NO_SEQUENCE
    assert rc.read_end_txn_marker(batch, 0, header) == rc.EndTxnMarker(commit, 4, 123)


def test_control_batch_that_compaction_emptied_has_no_marker():
    marker = rc.end_txn_marker(commit=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=1)
    empty = rc.empty_batch(rb.read_header(marker))
    assert rc.read_end_txn_marker(empty, 0, rb.read_header(empty)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"\0" * 6), (b"\0\0", b"\0" * 6), (b"\xff\xff\0\1", b"\0" * 6), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0"),
     (b"\0\0\0\1", b"\xff\xff\0\0\0\0"), (b"\0\0\0\2", b"\0" * 6), (b"\0\0\0\x63", b"\0" * 6)],
)  # fmt: skip
def test_record_that_is_not_a_transaction_marker_is_malformed(key, value):
    with pytest.raises(Malformed):
        rc.parse_end_txn_marker(rc.Record(0, 0, key, value))


def test_control_types_of_the_future_are_unknown_not_fatal():
    assert rc.control_type(b"\0\0\0\x63") is rc.ControlType.UNKNOWN
    assert rc.control_type_id(b"\0\1\0\x63more") == 99


def batch_of(body: bytes, *, count: int, last_delta: int) -> bytes:
    return rc.assemble(
        body, base_offset=0, last_offset_delta=last_delta, record_count=count, attributes=0, base_timestamp=0,
        max_timestamp=0,
    )  # fmt: skip


def one(offset_delta: int, **kwargs) -> bytes:
    return rc.encode_record(b"k", b"v", (), timestamp_delta=0, offset_delta=offset_delta)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch_of(one(0), count=2, last_delta=1), id="fewer records than the count"),
        pytest.param(batch_of(one(0) + one(1), count=1, last_delta=0), id="more records than the count"),
        pytest.param(batch_of(one(0) + b"x", count=1, last_delta=0), id="bytes after the records"),
        pytest.param(batch_of(one(0) + one(0), count=2, last_delta=1), id="the same offset twice"),
        pytest.param(batch_of(one(5), count=1, last_delta=1), id="an offset past the last"),
        pytest.param(batch_of(one(-1), count=1, last_delta=0), id="a negative offset delta"),
        pytest.param(batch_of(b"\x01" + one(0)[1:], count=1, last_delta=0), id="a negative length"),
        pytest.param(batch_of(b"\x02\x00", count=1, last_delta=0), id="a record shorter than any"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 3, 1, 0]), count=1, last_delta=0), id="a key of -2 bytes"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 1, 3, 0]), count=1, last_delta=0), id="a value of -2 bytes"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 1, 1, 1]), count=1, last_delta=0), id="-1 headers"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 1, 1, 126]), count=1, last_delta=0), id="63 headers in no bytes"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 126, 1, 0]), count=1, last_delta=0), id="a key past the end"),
    ],
)
def test_records_that_contradict_their_header_are_malformed(batch: bytes):
    with pytest.raises(Malformed):
        list(rc.iter_records(batch))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch_of(one(0), count=2, last_delta=1), id="fewer records than the count"),
        pytest.param(batch_of(one(0) + one(1), count=1, last_delta=0), id="more records than the count"),
        pytest.param(batch_of(one(0) + one(0), count=2, last_delta=1), id="the same offset twice"),
        pytest.param(batch_of(one(5), count=1, last_delta=1), id="an offset past the last"),
        pytest.param(batch_of(b"\x01" + one(0)[1:], count=1, last_delta=0), id="a negative length"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 3, 1, 0]), count=1, last_delta=0), id="a key of -2 bytes"),
        pytest.param(batch_of(bytes([12, 0, 0, 0, 4, 1, 0, 0]), count=1, last_delta=0), id="a key up to the end"),
        pytest.param(batch_of(bytes([12, 0, 128, 128, 128, 128, 128]), count=1, last_delta=0), id="an endless varint"),
    ],
)
def test_keys_of_records_that_contradict_their_header_are_malformed(batch: bytes):
    header = rb.read_header(batch)
    with pytest.raises(Malformed):
        list(rc.iter_keys(rc.records_body(batch, 0, header), header))


@pytest.mark.parametrize("size", [63, 64, 8_191, 8_192, 1_100_000])
def test_lengths_and_deltas_of_every_width_are_read(size: int):
    builder = rc.BatchBuilder()
    builder.append(b"k" * size, b"v" * size, timestamp=0, headers=[("h" * size, b"x" * size)])
    builder.append(b"K", None, timestamp=size, offset=size)
    builder.append(None, b"V", timestamp=2 * size, offset=2 * size)
    batch = builder.build()
    first, second, third = rc.iter_records(batch)
    assert first == (0, 0, b"k" * size, b"v" * size, (("h" * size, b"x" * size),), -1)
    assert (second.offset, second.timestamp, second.value) == (size, size, None)
    assert (third.offset, third.timestamp, third.key) == (2 * size, 2 * size, None)
    header = rb.read_header(batch)
    spans = list(rc.iter_keys(rc.records_body(batch, 0, header), header))
    assert [(span.offset_delta, span.key, span.has_value) for span in spans] == [
        (0, b"k" * size, True),
        (size, b"K", False),
        (2 * size, None, True),
    ]


@pytest.mark.parametrize(
    "headers",
    [[2, 127, 1], [2, 1, 1], [2, 0, 3], [2, 0, 126]],
    ids=["a key past the end", "a null key", "a value of -2 bytes", "a value past the end"],
)
def test_record_headers_that_do_not_fit_are_malformed(headers: list[int]):
    body = bytes([2 * (5 + len(headers)), 0, 0, 0, 1, 1, *headers])
    with pytest.raises(Malformed):
        list(rc.iter_records(batch_of(body, count=1, last_delta=0)))


def test_timestamps_go_back_inside_a_batch():
    builder = rc.BatchBuilder()
    for timestamp in (5_000, 4_999, 0, 5_100):
        builder.append(None, None, timestamp=timestamp)
    assert [record.timestamp for record in rc.iter_records(builder.build())] == [5_000, 4_999, 0, 5_100]
    assert builder.size_bytes == len(builder.build())


def test_a_clients_batch_has_every_offset_and_says_where_the_largest_timestamp_is():
    builder = rc.BatchBuilder(base_offset=10)
    for key, timestamp in ((b"a", 5), (None, 9), (b"c", 9), (None, 1)):
        builder.append(key, b"", timestamp=timestamp)
    batch = builder.build()
    assert rc.validate_records(batch, 0, rb.read_header(batch)) == rc.ScanResult(9, 11, 1)


def test_a_clients_batch_with_a_gap_is_malformed():
    builder = rc.BatchBuilder()
    builder.append(b"a", b"", timestamp=0)
    builder.append(b"a", b"", timestamp=0, offset=2)
    batch = builder.build()
    with pytest.raises(Malformed, match="no offset may be skipped"):
        rc.validate_records(batch, 0, rb.read_header(batch))
    short = batch_of(one(0), count=1, last_delta=3)
    with pytest.raises(Malformed, match="last offset delta is 3"):
        rc.validate_records(short, 0, rb.read_header(short))


def test_bomb_is_refused_at_the_bound():
    builder = rc.BatchBuilder(codec=Codec.GZIP)
    builder.append(None, bytes(1_000_000), timestamp=0)
    batch = builder.build()
    assert len(batch) < 2_000
    with pytest.raises(Malformed, match="larger than the limit of 100000 bytes"):
        list(rc.iter_records(batch, max_decompressed_bytes=100_000))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize(
    ("beginning", "count", "why"),
    [
        (b"", 1, "record of 0 bytes"),
        (encode_varint(600_000_000), 1, "larger than the limit of 268435456 bytes"),
        (one(0), 1, "bytes follow the 1 records"),
    ],
)
def test_decompression_bomb_is_refused_before_it_takes_memory(codec, beginning, count, why, monkeypatch):
    body = beginning + bytes(20_000_000)
    made = []

    def spy(codec, data, limit):
        made.append(limit)
        return decompress(codec, data, limit)

    monkeypatch.setattr(record_decode, "decompress", spy)
    bomb = rc.assemble(
        compress(codec, body),
        base_offset=0,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=codec,
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(Malformed, match=why):
        list(rc.iter_records(bomb))
    assert made == [1 << 20], "no more than a megabyte was made of it"


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_records_that_are_large_when_decompressed_are_still_read(codec):
    builder = rc.BatchBuilder(codec=codec)
    values = [bytes([number]) * 3_000_000 for number in range(7)]
    for value in values:
        builder.append(b"k", value, timestamp=0)
    assert [record.value for record in rc.iter_records(builder.build())] == values


@given(
    codec=st.sampled_from(list(Codec)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.none() | st.integers(0, 10_000),
)
@settings(deadline=None, max_examples=300)
def test_damaged_batches_raise_nothing_but_malformed(codec, flips, cut):
    builder = rc.BatchBuilder(codec=codec)
    for number in range(5):
        builder.append(b"key" * number, b"value" * 30, timestamp=number * 1000, headers=[("h", b"x")])
    data = bytearray(builder.build())
    for at, mask in flips:
        data[at % len(data)] ^= mask
    if cut is not None:
        del data[cut % len(data) :]
    try:
        for position, header in rb.iter_batches(data):
            list(rc.iter_records(data, position, header, max_decompressed_bytes=1_000_000))
    except Malformed:
        return

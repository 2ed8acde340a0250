"""Record batches into Arrow columns, beside the record codec of `barnabas.wire`: same rows, same refusals."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base import compiled
from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.spark.columns import COLUMNS, TYPES, BatchDecoder
from barnabas.wire.compression import Codec, compress
from barnabas.wire.record_batch import CONTROL_FLAG, iter_batches
from barnabas.wire.records import BatchBuilder, Headers, assemble, encode_record, end_txn_marker, iter_records

PARTITION = TopicPartition("orders", 7)
FOREVER = 1 << 60


class Txn(NamedTuple):
    producer_id: int
    first_offset: int


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: Headers = ()


def decoder(start: int = 0, end: int = FOREVER, columns: Sequence[str] = tuple(TYPES), **how: object) -> BatchDecoder:
    return BatchDecoder(PARTITION, from_offset=start, to_offset=end, columns=columns, **how)  # type: ignore[arg-type]


def rows_of(
    reader: BatchDecoder, data: bytes, aborted: Iterable[Txn] = (), *, cut: bool = True
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in reader.decode(data, aborted, cut=cut):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def batch(base: int, rows: Sequence[Row], *, last: int | None = None, step: int = 1, **how: object) -> bytes:
    builder = BatchBuilder(base_offset=base, last_offset=last, **how)  # type: ignore[arg-type]
    for index, row in enumerate(rows):
        builder.append(row.key, row.value, headers=row.headers, timestamp=row.timestamp, offset=base + index * step)
    return builder.build()


def plain(base: int, *values: bytes, **how: object) -> bytes:
    return batch(base, [Row(None, value) for value in values], **how)  # type: ignore[arg-type]


def micros(value: object) -> int:
    assert isinstance(value, datetime)
    return round((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


ANY_BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
ROWS = st.lists(
    st.builds(Row, ANY_BYTES, ANY_BYTES, st.integers(0, 4_000_000_000_000), HEADERS), min_size=1, max_size=12
)


@given(
    batches=st.lists(st.tuples(ROWS, st.sampled_from(list(Codec)), st.integers(1, 3), st.booleans()), max_size=5),
    start=st.integers(0, 60),
    length=st.integers(0, 60),
    max_rows=st.sampled_from([1, 5, 1000]),
)
@settings(deadline=None, max_examples=150)
def test_columns_hold_what_the_record_codec_reads(
    batches: list[tuple[list[Row], Codec, int, bool]], start: int, length: int, max_rows: int
):
    data, base = b"", 0
    for rows, codec, step, append_time in batches:
        last = base + len(rows) * step
        data += batch(
            base, rows, step=step, last=last, codec=codec, log_append_time_ms=1_234_567 if append_time else None
        )
        base = last + 1
    expected = [
        (record, header.timestamp_type)
        for pos, header in iter_batches(data)
        for record in iter_records(data, pos, header)
        if start <= record.offset < start + length
    ]
    reader = decoder(start, start + length, max_rows=max_rows)
    found = rows_of(reader, data)
    assert [row["offset"] for row in found] == [record.offset for record, _ in expected]
    for row, (record, kind) in zip(found, expected, strict=True):
        assert (row["key"], row["value"], row["timestampType"]) == (record.key, record.value, kind)
        assert micros(row["timestamp"]) == record.timestamp * 1000
        assert (row["topic"], row["partition"]) == PARTITION
        headers = [{"key": name, "value": content} for name, content in record.headers]
        assert row["headers"] == (headers or None)
    assert reader.done == (start + length <= max(base, start))


@given(
    rows=ROWS,
    codec=st.sampled_from(list(Codec)),
    columns=st.permutations(list(TYPES)),
    count=st.integers(1, 8),
)
@settings(deadline=None, max_examples=40)
def test_any_choice_of_columns_gives_the_same_cells(rows: list[Row], codec: Codec, columns: list[str], count: int):
    data = batch(3, rows, codec=codec)
    everything = rows_of(decoder(), data)
    chosen = rows_of(decoder(columns=columns[:count]), data)
    assert chosen == [{name: row[name] for name in columns[:count]} for row in everything]


@given(
    rows=ROWS,
    codec=st.sampled_from([Codec.NONE, Codec.SNAPPY]),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_damaged_bytes_are_refused_or_read_as_the_record_codec_reads_them(
    rows: list[Row], codec: Codec, damage: list[tuple[int, int]]
):
    """Without CRCs, which would find nearly all damage: the kernel alone must recognise it."""
    data = bytearray(batch(0, rows, codec=codec))
    for place, byte in damage:
        data[8 + place % (len(data) - 8)] = byte

    def by_codec() -> list[tuple[int, bytes | None, bytes | None]]:
        found = []
        for pos, header in iter_batches(data):
            records = [(record.offset, record.key, record.value) for record in iter_records(data, pos, header)]
            if not header.attributes & CONTROL_FLAG:
                found += records
        return found

    def by_kernel() -> list[tuple[object, object, object]]:
        reader = decoder(-(1 << 62), 1 << 62, check_crcs=False, columns=COLUMNS)
        return [
            (offset, key, value)
            for part in reader.decode(bytes(data), cut=False)
            for offset, key, value in zip(
                *(part.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True
            )
        ]

    def outcome(read: Callable[[], object]) -> object:
        try:
            return read()
        except Malformed:
            return "refused"

    first, second = outcome(by_codec), outcome(by_kernel)
    # Bits that neither counts, like a control batch's records or an emptied batch's bytes, may be refused by one alone.
    assert first == second or "refused" in (first, second)
    if first != "refused" and second == "refused":
        header = next(iter_batches(data))[1]
        assert header.record_count == 0 or header.is_control or header.magic != 2, "a readable batch was refused"


@given(data=st.binary(max_size=400))
@settings(deadline=None, max_examples=200)
def test_garbage_never_crashes(data: bytes):
    reader = decoder(check_crcs=False)
    try:
        assert all(part.num_rows for part in reader.decode(data))
    except Malformed as error:
        assert str(PARTITION) in str(error)


@given(body=st.binary(min_size=7, max_size=80), count=st.integers(1, 10))
@settings(deadline=None, max_examples=300)
def test_a_made_up_body_under_a_good_header_never_crashes(body: bytes, count: int):
    data = assemble(
        body,
        base_offset=5,
        last_offset_delta=count,
        record_count=count,
        attributes=0,
        base_timestamp=0,
        max_timestamp=0,
    )
    reader = decoder()
    try:
        assert all(5 <= int(str(row["offset"])) <= 5 + count for row in rows_of(reader, data))
    except Malformed as error:
        assert "orders-7, batch at offset 5" in str(error)


def test_a_torn_tail_is_left_for_the_next_fetch_and_refused_in_a_whole_file():
    data = plain(0, b"a", b"b") + plain(2, b"c")
    for size in range(len(plain(0, b"a", b"b")), len(data)):
        reader = decoder()
        assert [row["value"] for row in rows_of(reader, data[:size])] == [b"a", b"b"]
        assert (reader.position, reader.done) == (2, False)
        if size > len(plain(0, b"a", b"b")):
            with pytest.raises(Malformed, match=r"orders-7: batch at position \d+ is torn"):
                rows_of(decoder(), data[:size], cut=False)


def test_corrupt_batches_are_named_by_partition_and_offset():
    data = bytearray(plain(40, b"payload"))
    data[-3] ^= 1
    with pytest.raises(Malformed, match="orders-7, batch at offset 40 is corrupt: its CRC does not match"):
        rows_of(decoder(), bytes(data))
    huge = assemble(
        encode_record(None, b"v", (), timestamp_delta=0, offset_delta=0),
        base_offset=9,
        last_offset_delta=2**31 - 1,
        record_count=2**31 - 1,
        attributes=0,
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(Malformed, match="batch at offset 9 claims 2147483647 records in 8 bytes"):
        rows_of(decoder(), huge)
    for magic in (0, 1):
        old = plain(0, b"x")
        old = old[:16] + bytes([magic]) + old[17:]
        with pytest.raises(Malformed, match=rf"orders-7: .*message format v{magic} of Kafka before 0.11"):
            rows_of(decoder(), old)
    with pytest.raises(Malformed, match="unknown magic 77"):
        rows_of(decoder(), data[:16] + bytes([77]) + data[17:])


def test_a_bomb_is_refused_before_it_grows():
    body = encode_record(None, bytes(5_000_000), (), timestamp_delta=0, offset_delta=0)
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY):
        data = assemble(
            compress(codec, body),
            base_offset=0,
            last_offset_delta=0,
            record_count=1,
            attributes=int(codec),
            base_timestamp=0,
            max_timestamp=0,
        )
        with pytest.raises(Malformed, match="orders-7, batch at offset 0: decompressed data is larger than the limit"):
            rows_of(decoder(max_decompressed_bytes=1_000_000), data)
        assert len(rows_of(decoder(), data)) == 1


def transaction(base: int, producer: int, *values: bytes) -> bytes:
    return plain(base, *values, producer_id=producer, producer_epoch=0, base_sequence=base, transactional=True)


def marker(base: int, producer: int, *, commit: bool) -> bytes:
    return end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=5, base_offset=base
    )


def test_aborted_transactions_go_and_a_later_one_of_the_same_producer_stays():
    data = (
        transaction(0, 1, b"gone")
        + transaction(1, 2, b"kept")
        + plain(2, b"plain")
        + marker(3, 1, commit=False)
        + transaction(4, 1, b"again")
        + marker(5, 2, commit=True)
        + marker(6, 1, commit=True)
        + transaction(7, 1, b"gone too", b"and this")
        + marker(9, 1, commit=False)
    )
    aborted = [Txn(1, 7), Txn(1, 0)]  # in any order
    reader = decoder(read_committed=True)
    assert [row["value"] for row in rows_of(reader, data, aborted)] == [b"kept", b"plain", b"again"]
    assert reader.position == 10
    uncommitted = decoder()
    values = [row["value"] for row in rows_of(uncommitted, data, aborted)]
    assert values == [b"gone", b"kept", b"plain", b"again", b"gone too", b"and this"]


def test_a_fetch_that_begins_inside_an_aborted_transaction_drops_its_rest():
    data = transaction(10, 4, b"middle") + marker(11, 4, commit=False) + transaction(12, 4, b"next")
    reader = decoder(10, read_committed=True)
    assert [row["value"] for row in rows_of(reader, data, [Txn(4, 3)])] == [b"next"]


def test_an_emptied_batch_and_a_gap_move_the_position():
    hole = batch(0, [], last=9, codec=Codec.LZ4)
    reader = decoder(0, 12)
    assert [row["offset"] for row in rows_of(reader, hole + plain(20, b"beyond"))] == []
    assert (reader.position, reader.done) == (10, True)


def test_timestamps_at_the_ends_of_time_do_not_wrap():
    data = batch(0, [Row(None, b"v", timestamp=2**62)]) + batch(1, [Row(None, b"v", timestamp=-1)])
    stamps = [value for part in decoder().decode(data) for value in part.column("timestamp").cast("int64").to_pylist()]
    assert stamps == [9_223_372_036_854_775_000, -1000]


def test_header_keys_that_are_not_utf8_are_read_as_javas_client_reads_them():
    """Unchanged, one of them made a whole table unreadable: DuckDB and Polars refuse a file with such a text."""
    record = encode_record(b"k", b"v", (("\udcff", b"x"),), timestamp_delta=0, offset_delta=0)
    data = assemble(
        record, base_offset=0, last_offset_delta=0, record_count=1, attributes=0, base_timestamp=0, max_timestamp=0
    )
    (part,) = decoder().decode(data)
    part.validate(full=True)
    assert part.column("headers").to_pylist() == [[{"key": "\ufffd", "value": b"x"}]]


def test_kernels_are_kept_on_disk_where_neither_package_nor_home_can_be_written(tmp_path: Path):
    """As for an executor of another user: numba's own folders are not writable, and the next process must not compile again."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "mine.py").write_text(
        "from barnabas.base.compiled import kernel\n\n@kernel\ndef twice(x):\n    return 2 * x\n"
    )
    script = "from mine import twice\nassert twice(4) == 8\nprint(sum(twice.stats.cache_hits.values()))\n"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join((str(package), os.environ.get("PYTHONPATH", ""))),
    }
    environment["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"
    hits = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
    (made,) = tmp_path.glob("barnabas-numba-*")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_cache_directory_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    path = compiled.own_cache_dir()
    assert path is not None
    Path(path).chmod(0o777)
    assert compiled.own_cache_dir() is None
    Path(path).rmdir()
    Path(path).symlink_to(tmp_path)
    assert compiled.own_cache_dir() is None

"""Format `barnabas-log`: Kafka 3.9.1's own files and a running broker's, read without a broker."""

import json
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import barnabas.spark
from barnabas.base.errors import ConfigError, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names
from barnabas.broker.storage.checkpoints import write_offsets, write_partition_metadata
from barnabas.broker.storage.txn_index import AbortedTxn, encode
from barnabas.spark import segment_plan
from barnabas.spark.offsets import DataLoss
from barnabas.spark.segment_plan import find_logs, last_stable_offset, slices
from barnabas.spark.segments import SegmentReader, log_options
from barnabas.spark.source import SCHEMA_WITH_HEADERS, columns_of
from barnabas.wire.records import BatchBuilder, end_txn_marker

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-3.9.1" / "broker-0"
ALL = columns_of(SCHEMA_WITH_HEADERS)


def read(options: dict[str, object], columns: tuple[str, ...] = ALL) -> list[dict[str, object]]:
    """Return the rows of a query, without Spark: plan, then run every task."""
    reader = SegmentReader(log_options({name: str(value) for name, value in options.items()}), columns)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def offsets(options: dict[str, object]) -> list[object]:
    return [row["offset"] for row in read(options, ("offset",))]


def test_spark_reads_what_kafka_wrote(spark: SparkSession):
    barnabas.spark.register(spark)
    frame = spark.read.format("barnabas-log").option("includeHeaders", "true").load(str(GOLDEN))
    rows = frame.collect()
    assert Counter((row.topic, row.partition) for row in rows) == {
        ("appendtime", 0): 10,
        ("compacted", 0): 31,
        ("keyed", 0): 33,
        ("keyed", 1): 9,
        ("keyed", 2): 18,
        ("plain-gzip", 0): 20,
        ("plain-lz4", 0): 20,
        ("plain-none", 0): 20,
        ("plain-snappy", 0): 20,
        ("plain-zstd", 0): 20,
        ("segments", 0): 200,
        ("txn", 0): 12,
    }
    assert {row.offset for row in rows if row.topic == "segments"} == set(range(200))
    assert {row.timestampType for row in rows if row.topic == "appendtime"} == {1}
    same = [
        sorted((row.offset, row.key, row.value, row.headers) for row in rows if row.topic == f"plain-{codec}")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    ]
    assert all(each == same[0] for each in same)
    assert any(row.headers for row in rows if row.topic == "plain-none")
    two = spark.read.format("barnabas-log").load([str(GOLDEN / "keyed-0"), str(GOLDEN / "keyed-1")])
    assert two.count() == 42


def test_read_committed_follows_the_transaction_index():
    everything = [row["value"] for row in read({"path": GOLDEN, "topic": "txn"})]
    committed = [row["value"] for row in read({"path": GOLDEN, "topic": "txn", "isolationLevel": "read_committed"})]
    assert len(everything) == 12
    assert 0 < len(committed) < 12
    assert all(b"abort" not in bytes(str(value), "utf-8") for value in committed)
    assert [value for value in everything if value in committed] == committed


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ("earliest", "latest", range(200)),
        ('{"segments":{"0":30}}', '{"segments":{"0":95}}', range(30, 95)),
        ('{"segments":{"0":190}}', "latest", range(190, 200)),
        ('{"segments":{"0":-1}}', "latest", range(0)),
        ("earliest", '{"segments":{"0":1}}', range(1)),
        ("earliest", '{"segments":{"0":100000}}', range(200)),
    ],
)
@pytest.mark.parametrize("max_bytes", [1, 1000, 1 << 26])
def test_offsets_choose_segments_and_places_in_them(starting: str, ending: str, expected: range, max_bytes: int):
    options = {"path": GOLDEN, "subscribe": "segments", "startingOffsets": starting, "endingOffsets": ending}
    assert offsets({**options, "maxBytesPerPartition": max_bytes}) == list(expected)


# -- folders of our own ------------------------------------------------------------------------------------------------


def data(base: int, count: int, producer_id: int = -1, size: int = 10) -> bytes:
    builder = BatchBuilder(
        base_offset=base, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=producer_id >= 0
    )
    for index in range(count):
        builder.append(None, bytes(size), timestamp=base + index)
    return builder.build()


def marker(base: int, producer_id: int, *, commit: bool) -> bytes:
    return end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=1, base_offset=base
    )


Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """`folder({0: [batch, …], 40: […]}, high_watermark=60)`: a log directory with one partition `t-0`."""

    def make(
        segments: dict[int, list[bytes]], *, high_watermark: int | None, name: str = "broker", start: int = 0
    ) -> Path:
        root = tmp_path / name
        where = root / "t-0"
        where.mkdir(parents=True)
        for base, batches in segments.items():
            (where / names.log_file(base)).write_bytes(b"".join(batches))
        if high_watermark is not None:
            write_offsets(str(root / names.REPLICATION_OFFSET_CHECKPOINT), {TopicPartition("t", 0): high_watermark})
        write_offsets(str(root / names.LOG_START_OFFSET_CHECKPOINT), {TopicPartition("t", 0): start} if start else {})
        return root

    return make


def test_nothing_at_or_above_the_high_watermark_is_read(folder: Folder):
    root = folder({0: [data(0, 5), data(5, 5)], 10: [data(10, 10)]}, high_watermark=13)
    assert offsets({"path": root}) == list(range(13))
    assert offsets({"path": root, "beyondHighWatermark": "true"}) == list(range(20))
    assert offsets({"path": root / "t-0"}) == list(range(13))


def test_records_below_the_log_start_are_deleted_ones(folder: Folder):
    root = folder({0: [data(0, 10)]}, high_watermark=10, start=4)
    assert offsets({"path": root}) == list(range(4, 10))
    early = {"path": root, "startingOffsets": '{"t":{"0":1}}'}
    with pytest.raises(DataLoss, match="t-0 is to be read from offset 1, its log begins with 4"):
        offsets(early)
    assert offsets({**early, "failOnDataLoss": "false"}) == list(range(4, 10))


def test_a_torn_tail_is_ignored_above_the_high_watermark_and_refused_below_it(folder: Folder):
    whole = [data(0, 5), data(5, 5)[:-3]]
    assert offsets({"path": folder({0: whole}, high_watermark=5)}) == list(range(5))
    assert offsets({"path": folder({0: whole}, high_watermark=5, name="b"), "beyondHighWatermark": "true"}) == [
        *range(5)
    ]
    with pytest.raises(Malformed, match="t-0: batch at position 0 is torn"):
        offsets({"path": folder({0: whole}, high_watermark=10, name="c")})
    with pytest.raises(Malformed, match=r"t-0: batch at position \d+ is torn"):
        offsets({"path": folder({0: whole, 10: [data(10, 1)]}, high_watermark=11, name="d")})


def test_the_folder_with_the_highest_high_watermark_is_read(folder: Folder):
    behind = folder({0: [data(0, 5)]}, high_watermark=5, name="behind")
    ahead = folder({0: [data(0, 8)]}, high_watermark=8, name="ahead")
    assert offsets({"path": f"{behind},{ahead}"}) == list(range(8))
    assert offsets({"paths": json.dumps([str(ahead), str(behind)])}) == list(range(8))


def test_an_open_transaction_holds_back_what_is_stable(folder: Folder):
    root = folder(
        {
            0: [data(0, 2), data(2, 2, producer_id=1), marker(4, 1, commit=False)],
            5: [
                data(5, 2, producer_id=1),
                data(7, 1),
                data(8, 2, producer_id=2),
                marker(10, 1, commit=True),
                data(11, 3),
            ],
        },
        high_watermark=14,
    )
    (root / "t-0" / names.txn_index_file(0)).write_bytes(encode(AbortedTxn(1, 2, 4, 5)))  # type: ignore[arg-type]
    (log,) = find_logs([str(root)], beyond_high_watermark=False).values()
    assert last_stable_offset(log) == 8
    committed = {"path": root, "kafka.isolation.level": "read_committed"}
    assert offsets(committed) == [0, 1, 5, 6, 7]
    assert offsets({"path": root}) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13]
    # Each part knows only the aborted transactions that reach into it: producer 1 went on to commit.
    for part in slices(log, start=5, until=8, max_bytes=1, read_committed=True):
        assert part.aborted == ()


def test_the_last_stable_offset_is_found_without_a_segment_in_memory(folder: Folder):
    """The driver once read the newest segment of each partition whole: it may have a gigabyte."""
    root = folder({0: [data(at, 1, 7, size=4_000_000) for at in range(8)]}, high_watermark=8)
    (log,) = find_logs([str(root)], beyond_high_watermark=False).values()
    tracemalloc.start()
    try:
        assert last_stable_offset(log) == 0
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_large_segment_is_split_where_its_index_points(folder: Folder):
    batches = [data(base, 10, size=500) for base in range(0, 200, 10)]
    root = folder({0: batches}, high_watermark=200)
    positions = [sum(map(len, batches[:index])) for index in range(len(batches))]
    index = b"".join(
        (base * 10 + 9).to_bytes(4, "big") + positions[base].to_bytes(4, "big") for base in range(2, len(batches), 2)
    )
    # As a running broker has it: room for more entries after the last.
    (root / "t-0" / names.index_file(0)).write_bytes(index + bytes(80))
    (log,) = find_logs([str(root)], beyond_high_watermark=False).values()
    parts = slices(log, start=0, until=200, max_bytes=20_000, read_committed=False)
    assert len(parts) == 5
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert all(part.start in positions for part in parts)
    assert offsets({"path": root, "maxBytesPerPartition": 20_000}) == list(range(200))
    (middle,) = slices(log, start=95, until=100, max_bytes=1 << 30, read_committed=False)
    assert (middle.start, middle.end) == (positions[8], positions[12])


def test_a_segment_that_goes_while_it_is_read_is_data_loss(folder: Folder):
    root = folder({0: [data(0, 5)], 5: [data(5, 5)]}, high_watermark=10)
    for fail, expected in (("true", None), ("false", [5, 6, 7, 8, 9])):
        reader = SegmentReader(log_options({"path": str(root), "failOnDataLoss": fail}), ("offset",))
        parts = reader.partitions()
        (root / "t-0" / names.log_file(0)).unlink(missing_ok=True)
        if expected is None:
            with pytest.raises(
                DataLoss, match=r"Cannot read t-0 from offset 0 to 5: .*00\.log is gone, the log begins with 5"
            ):
                list(reader.read(parts[0]))
            (root / "t-0" / names.log_file(0)).write_bytes(data(0, 5))
        else:
            rows = [row for part in parts for batch in reader.read(part) for row in batch.column("offset").to_pylist()]
            assert rows == expected


def planned(root: Path, **options: object) -> Callable[[], list[object]]:
    """Plan a query now; return a function that runs its tasks and returns the offsets."""
    reader = SegmentReader(log_options({"path": str(root)} | {k: str(v) for k, v in options.items()}), ("offset",))
    parts = reader.partitions()
    assert len(parts) > 1
    return lambda: [row for part in parts for batch in reader.read(part) for row in batch.column("offset").to_pylist()]


def swap_in(root: Path, base: int, batches: list[bytes], *, instead_of: tuple[int, ...] = ()) -> None:
    """Replace segments as a cleaner does: another file gets the name, and the old ones are removed."""
    where = root / "t-0"
    new = where / f"{names.log_file(base)}.swap"
    new.write_bytes(b"".join(batches))
    for old in instead_of:
        (where / names.log_file(old)).rename(where / f"{names.log_file(old)}.deleted")
    new.rename(where / names.log_file(base))


def test_a_cleaned_segment_is_read_in_place_of_the_planned_one(folder: Folder):
    root = folder({0: [data(0, 5), data(5, 5)], 10: [data(10, 5)], 20: [data(20, 5)]}, high_watermark=25)
    read_now = planned(root)
    swap_in(root, 0, [data(7, 3)])
    assert read_now() == [*range(7, 15), *range(20, 25)]


def test_segments_that_were_cleaned_into_one_are_read_once(folder: Folder):
    root = folder({0: [data(0, 10)], 10: [data(10, 10)], 20: [data(20, 5)]}, high_watermark=25)
    read_now = planned(root)
    swap_in(root, 0, [data(4, 3), data(15, 2)], instead_of=(10,))
    assert read_now() == [4, 5, 6, 15, 16, *range(20, 25)]


def test_pieces_of_a_segment_that_was_cleaned_meanwhile_are_read_once(folder: Folder):
    batches = [data(base, 10, size=500) for base in range(0, 200, 10)]
    root = folder({0: batches, 200: [data(200, 1)]}, high_watermark=201)
    positions = [sum(map(len, batches[:index])) for index in range(len(batches))]
    index = b"".join(
        (base * 10 + 9).to_bytes(4, "big") + positions[base].to_bytes(4, "big") for base in range(2, len(batches), 2)
    )
    (root / "t-0" / names.index_file(0)).write_bytes(index)
    read_now = planned(root, maxBytesPerPartition=20_000)
    swap_in(root, 0, [data(base, 5, size=500) for base in range(0, 200, 10)])
    assert read_now() == [*(base + each for base in range(0, 200, 10) for each in range(5)), 200]


def test_an_index_of_another_file_does_not_hide_records(folder: Folder):
    """Between the renames of a cleaner an index may belong to the former segment."""
    batches = [data(base, 10, size=500) for base in range(0, 100, 10)]
    root = folder({0: batches, 100: [data(100, 1)]}, high_watermark=101)
    index = b"".join((base * 10 + 9).to_bytes(4, "big") + (base * 777).to_bytes(4, "big") for base in range(2, 10, 2))
    (root / "t-0" / names.index_file(0)).write_bytes(index)
    options = {"path": root, "startingOffsets": '{"t":{"0":45}}', "endingOffsets": '{"t":{"0":65}}'}
    assert offsets(options) == list(range(45, 65))
    assert offsets({"path": root, "maxBytesPerPartition": 1}) == list(range(101))


def test_a_topic_that_was_created_again_after_the_plan_is_data_loss(folder: Folder):
    root = folder({0: [data(0, 5)], 5: [data(5, 5)]}, high_watermark=10)
    write_partition_metadata(str(root / "t-0" / names.PARTITION_METADATA), b"a" * 16)
    strict, lenient = planned(root), planned(root, failOnDataLoss="false")
    shutil.rmtree(root / "t-0")
    with pytest.raises(DataLoss, match="t-0 is gone"):
        strict()
    folder({0: [data(0, 7)]}, high_watermark=7, name="other")
    shutil.move(root.parent / "other" / "t-0", root / "t-0")
    write_partition_metadata(str(root / "t-0" / names.PARTITION_METADATA), b"b" * 16)
    with pytest.raises(DataLoss, match="created again"):
        strict()
    assert lenient() == []


def test_a_segment_that_is_being_swapped_is_waited_for(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    root = folder({0: [data(0, 10)], 20: [data(20, 5)]}, high_watermark=25)
    swap = root / "t-0" / f"{names.log_file(10)}.swap"
    swap.write_bytes(data(10, 5))
    monkeypatch.setattr(segment_plan.time, "sleep", lambda _: swap.exists() and swap.rename(swap.with_suffix("")))
    assert offsets({"path": root}) == [*range(15), *range(20, 25)]


def test_segments_that_a_dead_broker_left_half_swapped_are_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    root = folder({0: [data(0, 10)]}, high_watermark=10)
    (root / "t-0" / f"{names.log_file(10)}.swap").write_bytes(data(10, 5))
    monkeypatch.setattr(segment_plan, "_SWAP_S", 0.1)
    with pytest.raises(ConfigError, match="half swapped in"):
        offsets({"path": root})


def test_errors_say_what_is_wrong_with_a_path(tmp_path: Path, folder: Folder):
    cases: list[tuple[dict[str, object], str]] = [
        ({}, "option 'path' must name a log directory"),
        ({"path": tmp_path / "nowhere"}, "is not a directory"),
        ({"path": tmp_path}, "no partition's folder"),
        ({"path": folder({0: []}, high_watermark=None, name="new")}, "t-0 in .* have no high watermark in repl"),
        ({"path": GOLDEN, "topic": "orders"}, "no folder of topic orders"),
        ({"path": folder({0: []}, high_watermark=None) / "t-0"}, "set beyondHighWatermark=true"),
        ({"path": GOLDEN, "maxBytesPerPartition": 0}, "must be positive"),
        ({"path": GOLDEN, "isolationLevel": "dirty"}, "use read_committed or"),
        ({"path": GOLDEN, "topics": "a"}, "did you mean 'topic'"),
        ({"path": GOLDEN, "topic": "a", "subscribePattern": "b"}, "only one of"),
        ({"path": GOLDEN, "startingOffsets": "first"}, "startingOffsets: expected"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigError, match=message):
            read(options)


def test_a_copy_of_a_folder_reads_as_the_folder_does(tmp_path: Path):
    shutil.copytree(GOLDEN / "compacted-0", tmp_path / "compacted-0")
    copied = offsets({"path": tmp_path / "compacted-0", "beyondHighWatermark": "true"})
    assert copied == offsets({"path": GOLDEN, "topic": "compacted"})


def test_the_frame_of_the_format_has_the_columns_asked_for(spark: SparkSession):
    barnabas.spark.register(spark)
    schema = StructType([field for field in SCHEMA_WITH_HEADERS.fields if field.name in ("value", "offset")])
    frame: DataFrame = spark.read.format("barnabas-log").schema(schema).option("topic", "keyed").load(str(GOLDEN))
    assert frame.columns == ["value", "offset"]
    assert frame.count() == 60

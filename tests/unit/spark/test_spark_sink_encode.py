"""Arrow columns into record batches: read back with the broker's own decoder, and partitioned as other clients do."""

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.client.blocking_producer import ReadyBatch
from barnabas.client.partitioner import murmur2, partition_of_key
from barnabas.spark import encode_kernels
from barnabas.spark.encode import Encoder, RowRefused
from barnabas.spark.encode_settings import EncoderSettings
from barnabas.testing import Kafka
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_decode import Record, iter_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.string()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
PARTITIONS = {"a": 3, "b": 1, "c": 7}
NOW_MS = 1_700_000_000_000

row = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=40),
        "value": st.none() | st.text(max_size=300),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)}), max_size=3
        ),
        "topic": st.sampled_from(sorted(PARTITIONS)),
        "partition": st.none() | st.just(0),
        "timestamp": st.none() | st.integers(min_value=0, max_value=2**45).map(lambda ms: ms * 1000 + 7),
    }
)


def settings_of(**changes: Any) -> EncoderSettings:
    return EncoderSettings(**({"topic": None, "batch_bytes": 700, "record_bytes_max": 10_000} | changes))


def encoder(**changes: Any) -> Encoder:
    return Encoder(settings_of(**changes), PARTITIONS.__getitem__, chance=random.Random(1))


def arrow(rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def records_of(batch: ReadyBatch) -> list[Record]:
    ((position, header),) = iter_batches(batch.data)
    assert position == 0
    assert header.record_count == batch.record_count
    found = list(iter_records(batch.data, 0, header))
    assert header.max_timestamp == max(record.timestamp for record in found)
    return found


def as_row(record: Record) -> tuple[object, ...]:
    return record.key, record.value, tuple(record.headers), record.timestamp


def expected(row: dict[str, Any]) -> tuple[object, ...]:
    value = None if row["value"] is None else row["value"].encode()
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    timestamp = NOW_MS if row["timestamp"] is None else row["timestamp"] // 1000
    return row["key"], value, headers, timestamp


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(row, max_size=40), skip=st.integers(0, 3), codec=st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_rows_come_back_from_the_decoder_in_order_and_where_the_java_producer_puts_them(
    rows: list[dict[str, Any]], skip: int, codec: Codec
) -> None:
    whole = arrow(rows)
    sliced = whole.slice(skip)
    kept = rows[skip:]
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for batch in encoder(codec=codec).encode(sliced, now_ms=NOW_MS):
        assert len(batch.data) <= 700 or batch.record_count == 1 or codec is not Codec.NONE
        found.setdefault(batch.partition, []).extend(map(as_row, records_of(batch)))
    assert sorted(map(repr, (row for rows in found.values() for row in rows))) == sorted(map(repr, map(expected, kept)))
    for each in PARTITIONS:
        here = [
            row for row in kept if row["topic"] == each and (row["partition"] is not None or row["key"] is not None)
        ]
        for index in range(PARTITIONS[each]):
            mine = [expected(row) for row in here if where(row) == index]
            # Rows without a key may lie between them, on whichever partition was theirs.
            there = iter(found.get((each, index), []))
            assert all(any(row == other for other in there) for row in mine)


def where(row: dict[str, Any]) -> int:
    return row["partition"] if row["partition"] is not None else partition_of_key(row["key"], PARTITIONS[row["topic"]])


@settings(max_examples=200, deadline=None)
@given(before=st.binary(max_size=5), key=st.binary(max_size=70))
def test_murmur2_is_that_of_the_client(before: bytes, key: bytes) -> None:
    data = pa.array([before + key])
    buffer = data.buffers()[2]

    assert encode_kernels.murmur2(np.frombuffer(buffer, dtype=np.uint8), len(before), len(key)) == murmur2(key)


def test_keys_go_where_librdkafka_sends_them_with_the_java_partitioner(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=7)
    keys = [f"key-{number}".encode() * (number % 5 + 1) for number in range(200)]
    chosen: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(
            topic, key=key, on_delivery=lambda _, message: chosen.update({message.key(): message.partition()})
        )
    assert producer.flush(60) == 0
    rows = [{"key": key, "value": ""} for key in keys]
    ready = Encoder(settings_of(topic=topic), lambda _: 7, chance=random.Random(1)).encode(arrow(rows), now_ms=0)
    ours = {record.key: batch.partition.partition for batch in ready for record in records_of(batch)}
    assert ours == chosen


def test_rows_without_key_stay_on_a_partition_for_a_batch_and_spread_over_all() -> None:
    rows = [{"value": "x" * 100} for _ in range(100)]
    sink = encoder(topic="c")
    ready = [batch for _ in range(3) for batch in sink.encode(arrow(rows), now_ms=0)]
    counts = dict.fromkeys(range(7), 0)
    for batch in ready:
        counts[batch.partition.partition] += batch.record_count
    assert sum(counts.values()) == 300
    assert min(counts.values()) > 0.5 * 300 / 7
    assert len(ready) < 100


def test_the_topic_option_wins_over_the_column() -> None:
    ready = encoder(topic="b").encode(arrow([{"value": "v", "topic": "a"}]), now_ms=0)
    assert [batch.partition for batch in ready] == [("b", 0)]


def test_large_types_and_other_spellings_of_a_name_are_taken() -> None:
    schema = pa.schema([("KEY", pa.large_binary()), ("Value", pa.large_string())])
    (batch,) = encoder(topic="b").encode(arrow([{"KEY": b"k", "Value": "v"}], schema), now_ms=5)
    assert [as_row(record) for record in records_of(batch)] == [(b"k", b"v", (), 5)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"value": "v", "topic": None}], "null topic present"),
        ([{"value": "v", "topic": "a", "partition": 3}], "partition 3 is not one of topic 'a', which has 3"),
        ([{"value": "v", "topic": "a", "partition": -1}], "is not one of topic 'a'"),
        ([{"value": "v" * 20_000, "topic": "a"}], "larger than max.request.size"),
        ([{"value": "v", "topic": "a", "headers": [{"key": None, "value": b""}]}], "null key"),
        ([{"value": "v", "topic": "a", "timestamp": -5}], "before 1970"),
    ],
)
def test_a_row_that_cannot_become_a_record_is_refused(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RowRefused, match=words):
        encoder().encode(arrow(rows), now_ms=0)


def test_a_million_rows_take_seconds_at_most() -> None:
    """The limit is far below the measured millions per second: it fails if the encoder makes an object per record."""
    values = pa.array([b"v" * 200] * 10_000, pa.binary())
    keys = pa.array([str(number).encode() for number in range(10_000)], pa.binary())
    batch = pa.record_batch([keys, values], names=["key", "value"])
    sink = Encoder(settings_of(topic="c", batch_bytes=500_000), PARTITIONS.__getitem__, chance=random.Random(1))
    sink.encode(batch, now_ms=0)
    began = time.process_time()
    count = sum(ready.record_count for _ in range(20) for ready in sink.encode(batch, now_ms=0))
    assert count == 200_000
    assert time.process_time() - began < 2

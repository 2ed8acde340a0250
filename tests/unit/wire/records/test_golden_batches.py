"""Every batch that Kafka 3.9.1 wrote is valid, decoded, and encoded again to the same bytes if these are determined."""

from pathlib import Path

import pytest

from barnabas.wire import record_batch as rb
from barnabas.wire import records as rc
from barnabas.wire.compression import Codec, compress, decompress

BROKER = Path(__file__).parents[3] / "golden" / "kafka-3.9.1" / "broker-0"
LOGS = sorted(BROKER.glob("*/*.log"))


def batches(path: Path):
    data = path.read_bytes()
    for position, header in rb.iter_batches(data):
        yield data[position : position + header.size_bytes], header


def test_golden_logs_exist():
    assert len(LOGS) >= 27
    assert sum(1 for path in LOGS for _ in batches(path)) > 200


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_batch_is_valid_and_built_again_to_the_same_bytes(path: Path):
    for data, header in batches(path):
        assert rb.crc_ok(data, 0, header)
        records = list(rc.iter_records(data, 0, header))
        assert len(records) == header.record_count
        codec = Codec(header.codec)
        if codec in (Codec.SNAPPY, Codec.ZSTD):
            # The client (librdkafka) framed or compressed differently, but the records must have the same bytes.
            body = rc.records_body(data, 0, header)
            assert decompress(codec, compress(codec, body)) == body
            continue
        if header.timestamp_type == rb.LOG_APPEND_TIME:
            continue  # the records' own timestamps cannot be seen: the next test has them
        assert rebuild(records, header) == data


def rebuild(records: list[rc.Record], header: rb.BatchHeader) -> bytes:
    builder = rc.BatchBuilder(
        base_offset=header.base_offset,
        codec=header.codec,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
    )
    for record in records:
        builder.append(
            record.key, record.value, timestamp=record.timestamp, headers=record.headers, offset=record.offset
        )
    return builder.build()


def test_patch_turns_a_create_time_batch_into_a_log_append_time_batch():
    ((data, header),) = batches(BROKER / "appendtime-0" / "00000000000000000000.log")
    assert header.timestamp_type == rb.LOG_APPEND_TIME
    assert {record.timestamp for record in rc.iter_records(data)} == {header.max_timestamp}
    undone = bytearray(data)
    rb.patch_max_timestamp(undone, 0, header.base_timestamp, log_append_time=False)
    records = list(rc.iter_records(undone))
    again = bytearray(rebuild(records, rb.read_header(undone)))
    rb.patch_max_timestamp(again, 0, header.max_timestamp, log_append_time=True)
    assert again == data


def test_transaction_markers_are_built_again_to_the_same_bytes():
    outcomes = []
    for data, header in batches(BROKER / "txn-0" / "00000000000000000000.log"):
        if header.is_control:
            marker = rc.read_end_txn_marker(data, 0, header)
            assert marker is not None
            outcomes.append(marker.is_commit)
            assert data == rc.end_txn_marker(
                commit=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                timestamp=marker.timestamp,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
            )
    assert outcomes == [True, False, True, False]

"""Records of `__remote_log_metadata`: bytes, partitions and text as Kafka 3.9.1 has them (tests/interop/java/TierEvents)."""

from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.base.errors import Malformed
from barnabas.base.ids import Offset, parse_uuid
from barnabas.broker.features.tiered.metadata_records import (
    RemoteLogMetadataDecoder,
    decode_event,
    describe,
    encode_event,
    metadata_partition,
)
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, SegmentState, partition_of_event
from barnabas.wire.records import Record
from tests.unit.broker.features.tiered.segments import segment

GOLDEN = Path(__file__).parents[4] / "golden/kafka-3.9.1/remote-log-metadata.tsv"
LINES = [line.split("\t") for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize(("partition", "data", "text"), LINES)
def test_events_have_the_bytes_the_partition_and_the_text_that_kafka_gives_them(
    partition: str, data: str, text: str
) -> None:
    event = decode_event(bytes.fromhex(data))
    assert event is not None
    assert encode_event(event).hex() == data
    assert describe(event) == text
    assert metadata_partition(partition_of_event(event), 50) == int(partition)


def test_event_that_kafka_wrote_is_read_field_by_field() -> None:
    event = decode_event(bytes.fromhex(LINES[1][1]))
    assert isinstance(event, RemoteSegment)
    assert event.id == (parse_uuid("8fvGHbP_QHWc0ULVvGVn3A"), "orders", 0, parse_uuid("kFUh0UqfTXKEhhB5mXzdZw"))
    assert (event.start_offset, event.end_offset, event.size_bytes) == (100, 1999, 1048576)
    assert (event.max_timestamp, event.event_ms, event.broker_id) == (1700000000123, 1700000002789, 4)
    assert event.epochs == {0: 100, 2: 150, 7: 1800}
    assert (event.state, event.custom) == (SegmentState.COPY_FINISHED, b"\x01\x02\x03")


def test_an_empty_transaction_index_is_marked_by_a_tag() -> None:
    event = replace(segment(1, 0, 9), txn_index_empty=True)
    assert decode_event(encode_event(event)) == event
    assert len(encode_event(event)) == len(encode_event(segment(1, 0, 9))) + 3


@pytest.mark.parametrize("data", ["", "01", "0100", "020000", "010901", "010900", LINES[0][1][:-4], LINES[0][1] + "00"])
def test_damaged_records_are_refused(data: str) -> None:
    with pytest.raises(Malformed):
        decode_event(bytes.fromhex(data))


def test_the_decoder_of_dump_log_says_what_it_cannot_read() -> None:
    decoder = RemoteLogMetadataDecoder()
    good = Record(Offset(7), 0, None, bytes.fromhex(LINES[0][1]))
    bad = Record(Offset(8), 0, None, b"\x01\x09\x00")
    assert decoder.decode(good) == (None, LINES[0][2])
    assert decoder.decode(bad) == (None, "Error at offset 8, skipping. a record of an unknown type, 9")

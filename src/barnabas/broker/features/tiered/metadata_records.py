"""Encodes events as records of `__remote_log_metadata`, byte for byte as Kafka does, and assigns partitions to its
partitions."""

from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicId, format_uuid
from barnabas.broker.features.tiered.segment_metadata import (
    Event,
    PartitionDelete,
    PartitionDeleteState,
    RemoteSegment,
    RemoteSegmentId,
    SegmentState,
    SegmentUpdate,
    TierPartition,
)
from barnabas.client.fetching import whole_batches_end
from barnabas.client.partitioner import murmur2
from barnabas.wire.codec import decode, encode
from barnabas.wire.messages import remote_log_metadata as records
from barnabas.wire.messages.base import Record
from barnabas.wire.record_batch import check_crc, crc_ok, iter_batches
from barnabas.wire.records import Record as LogRecord
from barnabas.wire.records import iter_records
from barnabas.wire.varint import append_uvarint, read_uvarint

#: A record begins with the version of its frame, its type, and its own version, as unsigned varints.
_FRAME: Final = 1
_VERSION: Final = 0
#: A snapshot of a segment, which Kafka writes to files only.
_SNAPSHOT_TYPE: Final = 3


def metadata_partition(of: TierPartition, partitions: int) -> int:
    """Kafka's RemoteLogMetadataTopicPartitioner."""
    most = int.from_bytes(of.topic_id[:8], "big")
    least = int.from_bytes(of.topic_id[8:], "big")
    hashed = 1
    for part in (_long_hash(least), _long_hash(most), of.partition):
        hashed = (31 * hashed + part) & 0xFFFFFFFF
    return (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % partitions


def _long_hash(value: int) -> int:
    return (value ^ value >> 32) & 0xFFFFFFFF


# -- bytes ----------------------------------------------------------------------------------------------------------------


def encode_event(event: Event) -> bytes:
    match event:
        case RemoteSegment():
            return _framed(records.RemoteLogSegmentMetadataRecord.TYPE, _segment_record(event))
        case SegmentUpdate():
            update = records.RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=_id_entry(event.id),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_ms,
                custom_metadata=event.custom,
                remote_log_segment_state=event.state,
            )
            return _framed(records.RemoteLogSegmentMetadataUpdateRecord.TYPE, update)
        case PartitionDelete():
            deletion = records.RemotePartitionDeleteMetadataRecord(
                topic_id_partition=_partition_entry(event.of),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_ms,
                remote_partition_delete_state=event.state,
            )
            return _framed(records.RemotePartitionDeleteMetadataRecord.TYPE, deletion)


def decode_event(data: bytes) -> Event | None:
    """None: a kind of record that does not belong in the topic. :raises Malformed:"""
    frame, at = read_uvarint(data, 0, len(data), "frame version")
    if frame != _FRAME:
        raise Malformed(f"a record in a frame of version {frame}; supported is {_FRAME}")
    kind, at = read_uvarint(data, at, len(data), "record type")
    version, at = read_uvarint(data, at, len(data), "record version")
    if version != _VERSION:
        raise Malformed(f"a record of type {kind} has version {version}; supported is {_VERSION}")
    if kind == records.RemoteLogSegmentMetadataRecord.TYPE:
        return _read_segment(decode(records.RemoteLogSegmentMetadataRecord, data, version, at))
    if kind == records.RemoteLogSegmentMetadataUpdateRecord.TYPE:
        return _read_update(decode(records.RemoteLogSegmentMetadataUpdateRecord, data, version, at))
    if kind == records.RemotePartitionDeleteMetadataRecord.TYPE:
        return _read_deletion(decode(records.RemotePartitionDeleteMetadataRecord, data, version, at))
    if kind == _SNAPSHOT_TYPE:
        return None
    raise Malformed(f"a record of an unknown type, {kind}")


def _framed(kind: int, record: Record) -> bytes:
    out = bytearray()
    for number in (_FRAME, kind, _VERSION):
        append_uvarint(out, number)
    return bytes(out) + encode(record, _VERSION)


def _partition_entry(of: TierPartition) -> records.TopicIdPartitionEntry:
    return records.TopicIdPartitionEntry(name=of.topic, id=of.topic_id, partition=of.partition)


def _id_entry(segment_id: RemoteSegmentId) -> records.RemoteLogSegmentIdEntry:
    return records.RemoteLogSegmentIdEntry(topic_id_partition=_partition_entry(segment_id.of), id=segment_id.uuid)


def _segment_record(segment: RemoteSegment) -> records.RemoteLogSegmentMetadataRecord:
    return records.RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=_id_entry(segment.id),
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        broker_id=segment.broker_id,
        max_timestamp_ms=segment.max_timestamp,
        event_timestamp_ms=segment.event_ms,
        segment_leader_epochs=[
            records.SegmentLeaderEpochEntry(leader_epoch=epoch, offset=start)
            for epoch, start in sorted(segment.epochs.items())
        ],
        segment_size_in_bytes=segment.size_bytes,
        custom_metadata=segment.custom,
        remote_log_segment_state=segment.state,
        txn_index_empty=segment.txn_index_empty,
    )


def _read_id(entry: records.RemoteLogSegmentIdEntry) -> RemoteSegmentId:
    of = entry.topic_id_partition
    return RemoteSegmentId(TopicId(bytes(of.id)), of.name, of.partition, bytes(entry.id))


def _read_segment(record: records.RemoteLogSegmentMetadataRecord) -> RemoteSegment:
    epochs = {LeaderEpoch(each.leader_epoch): Offset(each.offset) for each in record.segment_leader_epochs}
    return RemoteSegment(
        id=_read_id(record.remote_log_segment_id),
        start_offset=Offset(record.start_offset),
        end_offset=Offset(record.end_offset),
        max_timestamp=record.max_timestamp_ms,
        broker_id=BrokerId(record.broker_id),
        event_ms=record.event_timestamp_ms,
        size_bytes=record.segment_size_in_bytes,
        epochs=dict(sorted(epochs.items())),
        state=_state(record.remote_log_segment_state),
        custom=_bytes(record.custom_metadata),
        txn_index_empty=record.txn_index_empty,
    )


def _read_update(record: records.RemoteLogSegmentMetadataUpdateRecord) -> SegmentUpdate:
    return SegmentUpdate(
        id=_read_id(record.remote_log_segment_id),
        state=_state(record.remote_log_segment_state),
        event_ms=record.event_timestamp_ms,
        broker_id=BrokerId(record.broker_id),
        custom=_bytes(record.custom_metadata),
    )


def _read_deletion(record: records.RemotePartitionDeleteMetadataRecord) -> PartitionDelete:
    of = record.topic_id_partition
    try:
        state = PartitionDeleteState(record.remote_partition_delete_state)
    except ValueError:
        raise Malformed(f"unknown state of a deletion: {record.remote_partition_delete_state}") from None
    return PartitionDelete(
        of=TierPartition(TopicId(bytes(of.id)), of.name, of.partition),
        state=state,
        event_ms=record.event_timestamp_ms,
        broker_id=BrokerId(record.broker_id),
    )


def _state(code: int) -> SegmentState:
    try:
        return SegmentState(code)
    except ValueError:
        raise Malformed(f"unknown state of a segment: {code}") from None


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


# -- text -----------------------------------------------------------------------------------------------------------------

_STATE_NAMES: Final = {
    SegmentState.COPY_STARTED: "COPY_SEGMENT_STARTED",
    SegmentState.COPY_FINISHED: "COPY_SEGMENT_FINISHED",
    SegmentState.DELETE_STARTED: "DELETE_SEGMENT_STARTED",
    SegmentState.DELETE_FINISHED: "DELETE_SEGMENT_FINISHED",
}


class RemoteLogMetadataDecoder:
    """`dump-log --remote-log-metadata-decoder`: records as Kafka's tool prints them. A `storage.dump` decoder."""

    def decode(self, record: LogRecord) -> tuple[str | None, str | None]:
        try:
            event = decode_event(record.value or b"")
        except Malformed as error:
            return None, f"Error at offset {record.offset}, skipping. {error}"
        return None, "" if event is None else describe(event)


def describe(event: Event) -> str:
    """Return the text that the event's class in Kafka prints."""
    tail = f", eventTimestampMs={event.event_ms}, brokerId={event.broker_id}}}"
    if isinstance(event, PartitionDelete):
        return (
            f"RemotePartitionDeleteMetadata{{topicPartition={event.of}, state=DELETE_PARTITION_{event.state.name}{tail}"
        )
    segment_id = f"RemoteLogSegmentId{{topicIdPartition={event.id.of}, id={format_uuid(event.id.uuid)}}}"
    custom = "Optional.empty" if event.custom is None else f"Optional[CustomMetadata{{{len(event.custom)} bytes}}]"
    state = _STATE_NAMES[event.state]
    if isinstance(event, SegmentUpdate):
        return f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment_id}, customMetadata={custom}, state={state}{tail}"
    epochs = ", ".join(f"{epoch}={start}" for epoch, start in event.epochs.items())
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment_id}, startOffset={event.start_offset}, "
        f"endOffset={event.end_offset}, brokerId={event.broker_id}, maxTimestampMs={event.max_timestamp}, "
        f"eventTimestampMs={event.event_ms}, segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={event.size_bytes}, "
        f"customMetadata={custom}, state={state}}}"
    )


class Decoded(NamedTuple):
    """The content of a fetch: events with their offsets, including records that cannot be decoded, and where it ends."""

    events: list[tuple[int, Event | Malformed]]
    next_offset: int
    epoch: int


def decode_records(data: bytes) -> Decoded | None:
    """None: no whole batch. The last one may be incomplete, as in answers of Kafka's brokers. Runs on a thread.

    :raises Malformed: if the bytes are damaged. Intact batches with invalid records are not an error: see `events`.
    """
    events: list[tuple[int, Event | Malformed]] = []
    end: tuple[int, int] | None = None
    for position, header in iter_batches(data, 0, whole_batches_end(data)):
        if end is not None and not crc_ok(data, position, header):
            break  # the batches before it are intact
        check_crc(data, position, header)
        try:
            for record in () if header.is_control else iter_records(data, position, header):
                try:
                    event = decode_event(record.value or b"")
                except Malformed as error:
                    events.append((record.offset, error))
                else:
                    if event is not None:
                        events.append((record.offset, event))
        except Malformed as error:
            events.append((header.last_offset, error))
        end = header.next_offset, header.leader_epoch
    return None if end is None else Decoded(events, *end)

"""Dumps the batches and records of a `.log` file."""

import mmap
import os
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.broker.storage import names
from barnabas.broker.storage.dump.decoders import RecordDecoder
from barnabas.broker.storage.dump.report import Fields, OptionalLong, Report
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import LOG_APPEND_TIME, BatchHeader, Buffer, check_length, crc_ok, read_header
from barnabas.wire.records import (
    ControlType,
    Record,
    control_type,
    control_type_id,
    iter_records,
    parse_end_txn_marker,
)

#: The bytes that a batch must have before Kafka's reader checks it: up to and including the magic.
_HEADER_UP_TO_MAGIC: Final = 17
MAX_BYTES: Final = 2**31 - 1


def dump_segment(
    path: str,
    report: Report,
    decoder: RecordDecoder | None,
    *,
    deep: bool,
    skip_record_metadata: bool = False,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Print every batch; with `deep` every record; with a `decoder` keys and values too."""
    start = names.offset_of_file(path)
    report.line(f"Log starting offset: {start}", "log", {"startOffset": start})
    size = os.path.getsize(path)  # noqa: PTH202
    end = min(size, max_bytes)
    position = 0
    gaps: list[tuple[int, int]] = []
    if end:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            last_offset: int | None = None
            while position < end - _HEADER_UP_TO_MAGIC:
                try:
                    header = read_header(data, position)
                    after = check_length(header, position, end)
                except Malformed as error:
                    if end == size:
                        report.finding(f"{path}: {error}")
                    break
                _batch(report, data, position, header)
                if deep:
                    try:
                        for record in iter_records(data, position, header):
                            if last_offset is not None and record.offset != last_offset + 1:
                                gaps.append((last_offset, record.offset))
                            last_offset = record.offset
                            _record(report, header, record, decoder, skip_record_metadata)
                    except Malformed as error:
                        report.finding(f"{path}: records of the batch at position {position} cannot be read: {error}")
                position = after
    trailing = end - position
    if trailing > 0 and max_bytes == MAX_BYTES:
        name = os.path.basename(path)  # noqa: PTH119
        report.line(f"Found {trailing} invalid bytes at the end of {name}", "invalidBytes", {"bytes": trailing})
    if gaps:
        report.finding(f"Non-consecutive offsets in {os.path.abspath(path)}")  # noqa: PTH100
        for first, second in reversed(gaps):
            report.finding(f"  {first} is followed by {second}")


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type == LOG_APPEND_TIME else "CreateTime"


def _codec(header: BatchHeader) -> str:
    codec = header.codec
    return Codec(codec).label if codec <= max(Codec) else f"unknown({codec})"


def _batch(report: Report, data: Buffer, position: int, header: BatchHeader) -> None:
    horizon = header.delete_horizon_ms
    fields: Fields = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": None if horizon is None else OptionalLong(horizon),
        "position": position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec(header),
        "crc": header.crc,
        "isvalid": crc_ok(data, position, header),
    }
    report.pairs("batch", fields)


def _record(
    report: Report, header: BatchHeader, record: Record, decoder: RecordDecoder | None, skip_metadata: bool
) -> None:
    fields: Fields = {}
    if not skip_metadata:
        fields = {
            "offset": record.offset,
            _timestamp_type(header): record.timestamp,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": record.sequence,
            "headerKeys": [name for name, _ in record.headers],
        }
        if header.is_control:
            fields |= _control(record)
    prefix = "| " if fields else ""
    if decoder is not None and not header.is_control:
        key, payload = decoder.decode(record)
        if key is not None:
            fields["key"] = key
            prefix = "| "
        if payload is not None:
            # Kafka's tool prints a lone payload with a space and no bar.
            prefix = prefix or " "
            fields["payload"] = payload
    report.pairs("record", fields, prefix=prefix)


def _control(record: Record) -> Fields:
    kind = control_type(record.key)
    if kind in (ControlType.COMMIT, ControlType.ABORT):
        marker = parse_end_txn_marker(record)
        return {"endTxnMarker": kind.name, "coordinatorEpoch": marker.coordinator_epoch}
    return {"controlType": f"{kind.name}({control_type_id(record.key)})"}

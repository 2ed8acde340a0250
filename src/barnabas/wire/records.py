"""Records inside a batch: decode, scan keys, validate, build. Use them only if a record's content matters: see `record_batch`.

One import for three modules: `record_decode` reads, `record_build` writes, `control_records` handles transaction markers.
"""

from barnabas.wire.control_records import (
    ControlType,
    EndTxnMarker,
    control_type,
    control_type_id,
    end_txn_marker,
    parse_end_txn_marker,
    read_end_txn_marker,
)
from barnabas.wire.record_build import BatchBuilder, assemble, empty_batch, encode_record, join_batch, plain_batch
from barnabas.wire.record_decode import (
    Headers,
    KeySpan,
    Record,
    ScanResult,
    decode_body,
    iter_keys,
    iter_records,
    records_body,
    validate_records,
)

__all__ = [
    "BatchBuilder",
    "ControlType",
    "EndTxnMarker",
    "Headers",
    "KeySpan",
    "Record",
    "ScanResult",
    "assemble",
    "control_type",
    "control_type_id",
    "decode_body",
    "empty_batch",
    "encode_record",
    "end_txn_marker",
    "iter_keys",
    "iter_records",
    "join_batch",
    "parse_end_txn_marker",
    "plain_batch",
    "read_end_txn_marker",
    "records_body",
    "validate_records",
]

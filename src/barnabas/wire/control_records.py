"""Control records: transaction markers, and the types of other control records."""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.wire.record_batch import BatchHeader, Buffer
from barnabas.wire.record_build import BatchBuilder
from barnabas.wire.record_decode import Record, iter_records

_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_VALUE: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """Types of control records. KRaft's are named so that a dump can report them."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    """The content of the only record in a transaction's control batch."""

    is_commit: bool
    coordinator_epoch: int
    timestamp: int


def end_txn_marker(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return the control batch that ends a transaction."""
    builder = BatchBuilder(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    builder.append(_CONTROL_KEY.pack(0, kind), _END_TXN_VALUE.pack(0, coordinator_epoch), timestamp=timestamp)
    return builder.build()


def control_type_id(key: bytes | None) -> int:
    """Return the number of a control record's type. Later versions of the key may be longer."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise Malformed("control record whose key is too short to name a type")
    version, type_id = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise Malformed(f"control record with the unknown key version {version}")
    return int(type_id)


def control_type(key: bytes | None) -> ControlType:
    type_id = control_type_id(key)
    return ControlType(type_id) if type_id in _CONTROL_TYPES else ControlType.UNKNOWN


_CONTROL_TYPES: Final = frozenset(ControlType)


def parse_end_txn_marker(record: Record) -> EndTxnMarker:
    kind = control_type(record.key)
    if kind not in (ControlType.COMMIT, ControlType.ABORT):
        raise Malformed(f"control record of type {kind.name} does not end a transaction")
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise Malformed("transaction marker whose value is too short")
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    if version < 0:
        raise Malformed(f"transaction marker with the unknown version {version}")
    return EndTxnMarker(kind is ControlType.COMMIT, coordinator_epoch, record.timestamp)


def read_end_txn_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTxnMarker | None:
    """Return the marker in the control batch at `pos`; None if compaction has emptied the batch."""
    record = next(iter_records(buf, pos, header), None)
    return None if record is None else parse_end_txn_marker(record)

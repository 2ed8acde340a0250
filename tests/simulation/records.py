"""Read the contents of a replica's log directly, without the code that serves clients."""

from typing import Any

from barnabas.base.ids import TopicPartition
from barnabas.broker.groups import records
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages.offsets_topic import OffsetCommitKey, OffsetCommitValue
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import iter_records


def bytes_of(log: Any, start: int, end: int) -> bytes:
    pieces = []
    offset = start
    while offset < end:
        data = log.read(offset, max_bytes=1 << 30, max_offset=end).read()
        if not data:
            break
        pieces.append(data)
        for _, header in iter_batches(data, 0, len(data)):
            offset = header.last_offset + 1
    return b"".join(pieces)


def offset_records(log: Any, group: str) -> dict[tuple[TopicPartition, int], int]:
    """Return where a log of `__consumer_offsets` has a group's commits: (partition, offset) -> offset of the first record.

    A commit that a leader did not answer is repeated at the next one. An answer about the offset may come from the first.
    """
    if log is None:
        return {}
    places: dict[tuple[TopicPartition, int], int] = {}
    data = bytes_of(log, log.log_start_offset, log.log_end_offset)
    for position, header in iter_batches(data, 0, len(data)):
        for record in () if header.is_control else iter_records(data, position, header):
            entry = records.decode(KeyValue(bytes(record.key or b""), record.value))
            if entry is None or not isinstance(entry.key, OffsetCommitKey) or entry.key.group != group:
                continue
            if isinstance(entry.value, OffsetCommitValue):
                tp = TopicPartition(entry.key.topic, entry.key.partition)
                places.setdefault((tp, entry.value.offset), record.offset)
    return places


def missed_aborts(log: Any) -> list[Any]:
    """Return aborted transactions that the indexes have and that a reader of their first record does not get."""
    entries = [txn for segment in log.segments for txn in segment.txn_index.entries()]
    return [
        txn
        for txn in entries
        if txn.first_offset >= log.local_log_start_offset
        and txn not in log.aborted_transactions(txn.first_offset, txn.first_offset + 1)
    ]

"""Dumps the files beside a segment: offset, time and transaction index, producer snapshot."""

import mmap
import os
from contextlib import ExitStack
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.broker.storage import names, producer_snapshot
from barnabas.broker.storage.dump.report import Fields, OptionalLong, Report
from barnabas.broker.storage.offset_index import OffsetIndex
from barnabas.broker.storage.time_index import TimeIndex
from barnabas.broker.storage.txn_index import VERSION, TransactionIndex
from barnabas.wire.record_batch import NO_TIMESTAMP, Buffer, iter_batches, read_header
from barnabas.wire.records import iter_records

DEFAULT_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024


def dump_offset_index(
    path: str,
    report: Report,
    *,
    sanity_only: bool = False,
    verify_only: bool = False,
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
) -> None:
    """Print the entries, and check each against the log."""
    base_offset = names.offset_of_file(path)
    with ExitStack() as stack:
        index = OffsetIndex(path, base_offset, read_only=True)
        stack.callback(index.release)
        # A running broker preallocates the index of its active segment: it is all zeros before the first entry.
        if index.entries == 0 or index.entry(0) == (base_offset, 0):
            report.line(f"{path} is empty.", "empty", {"file": path})
            return
        if sanity_only:
            index.sanity_check()
            report.line(f"{path} passed sanity check.", "sane", {"file": path})
            return
        log = _map_log(stack, path, base_offset)
        mismatches: list[tuple[int, int]] = []
        for number in range(index.entries):
            entry = index.entry(number)
            if entry.offset == base_offset and number > 0:
                break  # a crash leaves a tail of zeros
            found = _last_offset_at(log, entry.position, max_message_size)
            if found != entry.offset:
                mismatches.append((entry.offset, found))
            if not verify_only:
                report.pairs("offsetIndexEntry", {"offset": entry.offset, "position": entry.position})
        if mismatches:
            report.finding(f"Mismatches in :{os.path.abspath(path)}")  # noqa: PTH100
            for indexed, found in reversed(mismatches):
                report.finding(f"  Index offset: {indexed}, log offset: {found}")


def _last_offset_at(log: Buffer, position: int, max_message_size: int) -> int:
    """Return the last offset of the batch at `position`, or -1 if no whole batch is there."""
    try:
        header = read_header(log, position)
    except Malformed:
        return -1
    fits = position >= 0 and header.size_bytes <= min(max_message_size, len(log) - position)
    return header.last_offset if fits else -1


def dump_time_index(path: str, report: Report, *, sanity_only: bool = False, verify_only: bool = False) -> None:
    """Print the entries, and check each against the log."""
    base_offset = names.offset_of_file(path)
    with ExitStack() as stack:
        time_index = TimeIndex(path, base_offset, read_only=True)
        stack.callback(time_index.release)
        if sanity_only:
            time_index.sanity_check()
            report.line(f"{path} passed sanity check.", "sane", {"file": path})
            return
        index = OffsetIndex(_sibling(path, names.index_file(base_offset)), base_offset, read_only=True)
        stack.callback(index.release)
        log = _map_log(stack, path, base_offset)
        findings = _TimeFindings()
        previous = NO_TIMESTAMP
        for number in range(time_index.entries):
            entry = time_index.entry(number)
            if entry.offset == base_offset and (number > 0 or entry.timestamp == 0):
                break  # a crash leaves a tail of zeros; a running broker's new segment has only zeros
            found = _batch_that_ends_at(log, index.lookup(entry.offset).position, entry.offset)
            if found is None or found[0] != entry.offset:
                findings.not_found.append((entry.offset, -1 if found is None else found[0]))
            else:
                if found[1] != entry.timestamp:
                    findings.mismatches.append((entry.timestamp, found[1]))
                if previous >= entry.timestamp:
                    findings.out_of_order.append((entry.timestamp, previous))
            if not verify_only:
                report.pairs("timeIndexEntry", {"timestamp": entry.timestamp, "offset": entry.offset})
            previous = entry.timestamp
        findings.report(report, os.path.abspath(path))  # noqa: PTH100


def _batch_that_ends_at(log: Buffer, position: int, offset: int) -> tuple[int, int] | None:
    """Return (last offset, largest timestamp) of the first batch from `position` on that ends at or after `offset`."""
    try:
        for at, header in iter_batches(log, position):
            if header.last_offset >= offset:
                timestamps = [record.timestamp for record in iter_records(log, at, header)]
                return header.last_offset, max(timestamps, default=NO_TIMESTAMP)
    except Malformed:
        return None
    return None


class _TimeFindings:
    def __init__(self) -> None:
        self.mismatches: list[tuple[int, int]] = []
        self.out_of_order: list[tuple[int, int]] = []
        self.not_found: list[tuple[int, int]] = []

    def report(self, report: Report, path: str) -> None:
        if self.mismatches:
            report.finding(f"Found timestamp mismatch in :{path}")
            for indexed, found in self.mismatches:
                report.finding(f"  Index timestamp: {indexed}, log timestamp: {found}")
        if self.out_of_order:
            report.finding(f"Found out of order timestamp in :{path}")
            for indexed, previous in self.out_of_order:
                report.finding(f"  Index timestamp: {indexed}, Previously indexed timestamp: {previous}")
        if self.not_found:
            report.finding("The following indexed offsets are not found in the log.")
            for indexed, found in self.not_found:
                report.finding(f"Indexed offset: {indexed}, found log offset: {found}")


def dump_txn_index(path: str, report: Report) -> None:
    """Print the aborted transactions."""
    for txn in TransactionIndex(path, names.offset_of_file(path)).entries():
        report.pairs(
            "abortedTxn",
            {
                "version": VERSION,
                "producerId": txn.producer_id,
                "firstOffset": txn.first_offset,
                "lastOffset": txn.last_offset,
                "lastStableOffset": txn.last_stable_offset,
            },
        )


def dump_snapshot(path: str, report: Report) -> None:
    """Print the producers; a corrupt snapshot is a finding."""
    try:
        entries = producer_snapshot.read(path)
    except producer_snapshot.CorruptSnapshot as error:
        report.finding(str(error))
        return
    for entry in entries:
        first = entry.txn_first_offset
        fields: Fields = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": None if first is None else OptionalLong(first),
            "lastTimestamp": entry.last_timestamp,
        }
        for batch in entry.batches:
            fields |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.offset_delta,
                "timestamp": batch.timestamp,
            }
        # Kafka's tool leaves a space if a producer has no batch.
        report.pairs("producer", fields, end="" if entry.batches else " ")


def _sibling(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)  # noqa: PTH120


def _map_log(stack: ExitStack, path: str, base_offset: int) -> Buffer:
    with open(_sibling(path, names.log_file(base_offset)), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

"""What the logs of a world must hold, and the invariants of all state that is derived from their records."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.broker.storage.log import Log
from barnabas.broker.storage.record_check import read_marker
from barnabas.wire.record_batch import BatchHeader, check_crc, iter_batches, read_header
from barnabas.wire.records import iter_records


class Stored(NamedTuple):
    header: BatchHeader
    data: bytes


@dataclass
class Ledger:
    """The expected contents of one partition."""

    batches: list[Stored] = field(default_factory=list)
    #: Base offset -> all batches that were ever written there.
    history: dict[int, set[bytes]] = field(default_factory=dict)
    #: Whether records were cut off since everything was last durable: they may come back.
    was_cut: bool = False
    #: Offset of a truncation in progress: records at or above it may or may not be there.
    cutting_to: int = 1 << 62
    epoch: int = 0
    #: The highest log start: records below it may come back after a power cut, whole or in part.
    deleted_below: int = 0
    #: Base offsets before which the leader left out offsets, because it compacted the topic once.
    gaps: set[int] = field(default_factory=set)
    #: Producer id -> its last epoch. A producer that the log has forgotten continues in the next epoch, as clients do.
    producer_epochs: dict[int, int] = field(default_factory=dict)

    def remember(self, data: bytes) -> None:
        self.history.setdefault(read_header(data).base_offset, set()).add(data)


def content(log: Log) -> list[Stored]:
    """Return every batch of every segment, after checking the CRCs."""
    found = []
    for segment in log.segments:
        data = segment.file.read(0, segment.size_bytes)
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            found.append(Stored(header, data[position : position + header.size_bytes]))
    return found


def after_holes(found: list[Stored], ledger: Ledger) -> list[Stored]:
    """Return the batches after the last hole among deleted records that came back: a snapshot knows about the missing records,
    and the records before the hole do not.
    """
    holes = [
        place
        for place, (a, b) in enumerate(itertools.pairwise(found), 1)
        if a[0].next_offset != b[0].base_offset and b[0].base_offset not in ledger.gaps
    ]
    return found[holes[-1] if holes else 0 :]


class Promise(NamedTuple):
    start: int
    durable: int
    end: int


def records(batches: list[Stored], aborted: set[int]) -> Iterator[tuple[bytes, int, bytes]]:
    """Return (key, offset, value) of records that were not aborted."""
    for header, data in batches:
        if not header.is_control:
            for record in iter_records(data, 0, header):
                if record.offset not in aborted:
                    yield bytes(record.key or b""), record.offset, bytes(record.value or b"")


def aborted_offsets(batches: list[Stored]) -> set[int]:
    opened: dict[int, set[int]] = {}
    aborted: set[int] = set()
    for header, data in batches:
        if header.is_control:
            marker = read_marker(data, header)
            offsets = opened.pop(header.producer_id, set())
            if marker is not None and not marker.is_commit:
                aborted |= offsets
        elif header.is_transactional:
            opened.setdefault(header.producer_id, set()).update(range(header.base_offset, header.next_offset))
    return aborted


def check_derived(log: Log, found: list[Stored]) -> None:
    """Check that producers, transactions, epochs and indexes agree with the records."""
    name = log.partition
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    # State is read from the log start on, and also from a snapshot, which may know earlier records.
    found = [stored for stored in found if stored.header.last_offset >= start]
    opened: dict[int, int] = {}
    aborted: set[tuple[int, int, int]] = set()
    last: dict[int, BatchHeader] = {}
    for header, data in found:
        if header.producer_id < 0:
            continue
        if header.is_control:
            marker = read_marker(data, header)
            first = opened.pop(header.producer_id, None)
            if marker is not None and not marker.is_commit and first is not None:
                aborted.add((header.producer_id, first, header.base_offset))
        else:
            last[header.producer_id] = header
            if header.is_transactional:
                opened.setdefault(header.producer_id, header.base_offset)
    first_found = found[0].header.base_offset if found else end
    # Compaction may have removed the first record of a transaction whose marker was lost in a later power cut.
    kept = {stored.header.base_offset for stored in found} if log.config.is_compacted else range(first_found, end)
    open_before = False
    for producer_id, header in last.items():
        entry = log.producers.entry(producer_id)
        assert entry is not None, f"{name}: producer {producer_id} is forgotten"
        sequence = (header.base_sequence + header.last_offset_delta) & 0x7FFFFFFF
        # Compaction may also have removed a producer's last batch, if a later one was lost in a power cut.
        is_compacted_away = header.last_offset < entry.last_data_offset and not any(
            stored.header.base_offset <= entry.last_data_offset < stored.header.next_offset for stored in found
        )
        assert (entry.last_sequence, entry.last_data_offset) == (sequence, header.last_offset) or (
            log.config.is_compacted and is_compacted_away
        ), f"{name}: {entry} of {header}"
        first = entry.txn_first_offset
        if first is not None and first not in kept:
            open_before = True  # it began in records that are deleted
        else:
            assert first == opened.get(producer_id), f"{name}: {entry}, open since {opened.get(producer_id)}"
    open_before |= any(
        first is not None and first not in kept
        for first in (entry.txn_first_offset for entry in log.producers.producers.values())
    )
    if not open_before:
        expected = max(start, min([*opened.values(), end]))
        assert log.last_stable_offset == expected, f"{name}: last stable {log.last_stable_offset}, not {expected}"
    if not log.config.is_compacted:
        answered = {
            (txn.producer_id, txn.last_offset): txn.first_offset for txn in log.aborted_transactions(start, end)
        }
        for producer_id, first_offset, last_offset in aborted:
            if last_offset >= start:
                known = answered.pop((producer_id, last_offset), None)
                assert known is not None and (known == first_offset or known < first_found), (
                    f"{name}: {known}, {aborted}"
                )
        assert all(known < first_found for known in answered.values()), f"{name}: never aborted: {answered}"
    for header, _ in found:
        if header.base_offset >= start:
            epoch = max((e.epoch for e in log.epochs.entries if e.start_offset <= header.base_offset), default=None)
            assert epoch == header.leader_epoch, (
                f"{name}: epoch {epoch} at {header.base_offset}, {header.leader_epoch} there"
            )
    check_indexes(log)


def check_indexes(log: Log) -> None:
    stamps: list[tuple[int, int]] = []
    for segment in log.segments:
        data = segment.file.read(0, segment.size_bytes)
        batches = dict(iter_batches(data))
        for position, header in batches.items():
            at = segment.find(header.base_offset)
            assert at is not None and at.position == position, f"{log.partition}: {header.base_offset} is found at {at}"
            if header.is_control:
                stamps.append((header.max_timestamp, header.base_offset))
            else:
                stamps += [(record.timestamp, record.offset) for record in iter_records(data, position, header)]
        index = segment.offset_index
        for number in range(index.entries):
            entry = index.entry(number)
            assert entry.position in batches, f"{log.partition}: {entry} points into a batch"
            assert batches[entry.position].base_offset <= entry.offset
    visible = [(timestamp, offset) for timestamp, offset in stamps if offset >= log.log_start_offset]
    for timestamp in sorted({stamp for stamp, _ in visible})[::5]:
        answered = log.offset_for_timestamp(timestamp)
        expected = next(offset for stamp, offset in visible if stamp >= timestamp)
        assert answered is not None and answered.offset == expected, (
            f"{log.partition}: at {timestamp} {answered}, not {expected}"
        )

"""`.txnindex`: the aborted transactions that ended in a segment, 34 bytes each, in order of their last offset.

A consumer that reads committed data gets those that overlap its fetch. The file exists only if there is an entry.
Owner: the segment. I/O errors stay `OSError`.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import REAL_DISK, Disk, write_fully
from barnabas.base.ids import Offset, ProducerId
from barnabas.broker.storage.index_file import CorruptIndex

VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size


class AbortedTxn(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    #: Offset of the abort marker.
    last_offset: Offset
    #: The last stable offset when the marker was written: no transaction that ends later starts below it.
    last_stable_offset: Offset


class AbortedSearch(NamedTuple):
    aborted: list[AbortedTxn]
    #: Whether no later segment can have another one for the range.
    is_complete: bool


def encode(txn: AbortedTxn) -> bytes:
    return _ENTRY.pack(VERSION, *txn)


def decode(path: str, data: bytes) -> Iterator[AbortedTxn]:
    """Yield the entries of a file; `path` is for errors. Ignores a torn last entry. :raises CorruptIndex:"""
    for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
        version, *fields = _ENTRY.unpack_from(data, at)
        if version != VERSION:
            raise CorruptIndex(f"{path}: entry at {at} has an unknown version {version}")
        yield AbortedTxn(*fields)


class TransactionIndex:
    """Last offsets strictly ascending. Reads the file on demand: aborted transactions are few, and seldom needed."""

    def __init__(self, path: str, base_offset: int, *, disk: Disk = REAL_DISK) -> None:
        self.path = path
        self._disk = disk
        self.base_offset = base_offset
        self._last_offset: int | None = None
        self._last_known = False
        self._fd: int | None = None

    def __repr__(self) -> str:
        return f"TransactionIndex({self.path!r}, base_offset={self.base_offset})"

    @property
    def exists(self) -> bool:
        return self._disk.exists(self.path)

    def hold(self) -> None:
        """Open everything for which `append` needs a descriptor. Call `let_go` afterwards."""
        self._last()
        self._fd = self._disk.open(self.path, create=True)

    def let_go(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def append(self, txn: AbortedTxn) -> None:
        last = self._last()
        if last is not None and txn.last_offset <= last:
            raise BrokenInvariant(
                f"{self.path}: aborted transaction at {txn.last_offset} is not above the last, {last}"
            )
        disk = self._disk
        fd = self._fd if self._fd is not None else disk.open(self.path, create=True)
        try:
            # Write at a multiple of the entry size, so that an entry that a full disk tore is written over.
            write_fully(disk, fd, encode(txn), disk.length(fd) // ENTRY_SIZE * ENTRY_SIZE)
        finally:
            if fd != self._fd:
                disk.close(fd)
        self._last_offset = txn.last_offset

    def entries(self) -> list[AbortedTxn]:
        """Return every entry; `CorruptIndex` if the bytes are not entries. Ignores a torn last entry."""
        return list(self._iterate())

    def collect(self, fetch_offset: int, upper_bound_offset: int, *, end_offset: int | None = None) -> AbortedSearch:
        """Return the aborted transactions that overlap [fetch_offset, upper_bound_offset). Ignore transactions that ended at or
        after `end_offset`: they are not the log's."""
        if self._last() is None:
            # Most segments have none, and every read_committed fetch asks: the answer must not cost a system call.
            return AbortedSearch([], False)
        aborted = []
        for txn in self._iterate():
            if end_offset is not None and txn.last_offset >= end_offset:
                break
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
                aborted.append(txn)
            # Kafka's followers write too high an offset if one fetch also brings the beginnings of later transactions.
            if min(txn.last_stable_offset, txn.last_offset + 1) >= upper_bound_offset:
                return AbortedSearch(aborted, True)
        return AbortedSearch(aborted, False)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that ended at or above `offset`."""
        last: int | None = None
        for number, txn in enumerate(self._iterate()):
            if txn.last_offset >= offset:
                self._truncate(number * ENTRY_SIZE)
                self._last_offset, self._last_known = last, True
                return
            last = txn.last_offset

    def reset(self) -> None:
        """Drop every entry, before a rebuild."""
        if self.exists:
            self._truncate(0)
        self._last_offset, self._last_known = None, True

    def sanity_check(self) -> None:
        """Raise `CorruptIndex` if the content is impossible."""
        last: int | None = None
        for txn in self._iterate():
            if txn.last_offset < self.base_offset:
                raise CorruptIndex(f"{self.path}: {txn} ends below the base offset {self.base_offset}")
            if txn.first_offset > txn.last_offset:
                raise CorruptIndex(f"{self.path}: {txn} ends before it starts")
            if last is not None and txn.last_offset <= last:
                raise CorruptIndex(f"{self.path}: {txn} does not end after the one before it, at {last}")
            last = txn.last_offset
        if self.exists and self._disk.size(self.path) % ENTRY_SIZE:
            raise CorruptIndex(f"{self.path}: the last entry is torn")

    def _truncate(self, size_bytes: int) -> None:
        fd = self._disk.open(self.path)
        try:
            self._disk.truncate(fd, size_bytes)
        finally:
            self._disk.close(fd)

    def _last(self) -> int | None:
        if not self._last_known:
            self._last_offset = None
            for txn in self._iterate():
                self._last_offset = txn.last_offset
            self._last_known = True
        return self._last_offset

    def _iterate(self) -> Iterator[AbortedTxn]:
        try:
            data = self._disk.read_file(self.path)
        except FileNotFoundError:
            return
        yield from decode(self.path, data)

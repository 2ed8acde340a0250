"""What the offset index and the time index share: a sparse file of fixed-size entries, read through a memory map.

The index of the active segment is preallocated (sparse) to `max_index_bytes`; when the segment becomes inactive, or at
close, it is trimmed to its entries. After a crash the zero tail is still there, which `sanity_check` detects.

Opened lazily: an index that is not read costs neither a file descriptor nor a map. Python's mmap keeps a duplicate of the
descriptor, so ours is closed at once.

A store into a hole of a mapped file kills the process with SIGBUS when the disk is full. So blocks are reserved
(`Disk.reserve`) ahead of the entries, which raises `OSError` instead, and the log directory goes offline.

I/O errors stay `OSError`: the owner knows the log directory. Owner: the segment; not thread-safe.
"""

import os
from abc import ABC, abstractmethod
from typing import Final

from barnabas.base.errors import BrokenInvariant, Malformed
from barnabas.base.host import descriptors
from barnabas.base.host.disk import REAL_DISK, Disk, FileMap
from barnabas.broker.storage.log_types import RELATIVE_OFFSET_MAX

#: Blocks are reserved this far ahead: 8,192 entries of the offset index, 32 MB of log at the default interval.
RESERVE_BYTES: Final = 64 * 1024
DEFAULT_MAX_INDEX_BYTES: Final = 10 * 1024 * 1024


class CorruptIndex(Malformed):
    """An index with impossible content; the owner rebuilds it from the log."""


class IndexFile(ABC):
    """Entries 0 … `entries`-1 are valid, ascending; bytes after them are zero or absent."""

    ENTRY_SIZE: int

    def __init__(
        self,
        path: str,
        base_offset: int,
        *,
        max_index_bytes: int = DEFAULT_MAX_INDEX_BYTES,
        read_only: bool = False,
        disk: Disk = REAL_DISK,
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_index_bytes = max_index_bytes
        self._read_only = read_only
        self._disk = disk
        self._map: FileMap | None = None
        self._opened = False
        #: Length of the file. `entries * ENTRY_SIZE <= _length`.
        self._length = 0
        self._entries = 0
        #: Bytes from the start that have blocks on disk. Never below `entries * ENTRY_SIZE`.
        self._reserved = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, base_offset={self.base_offset})"

    # -- contents

    @property
    def is_open(self) -> bool:
        return self._opened

    @property
    def entries(self) -> int:
        if not self._opened:
            self.open()
        return self._entries

    @property
    def is_full(self) -> bool:
        if not self._opened:
            self.open()
        return self._entries >= self._length // self.ENTRY_SIZE

    @property
    def size_bytes(self) -> int:
        """The bytes of the entries, whatever the file's length."""
        return self.entries * self.ENTRY_SIZE

    @property
    def length_bytes(self) -> int:
        """Length of the file: preallocated while the segment is active."""
        if not self._opened:
            self.open()
        return self._length

    # -- opening, sizing, closing

    def open(self) -> None:
        """Map the file; create it, preallocated and empty, if it does not exist. An existing file counts as full of entries:
        a caller that makes it active again calls `resize`, a caller that recovers it calls `reset`."""
        if self._opened:
            return
        disk = self._disk
        try:
            fd = disk.open(self.path, read_only=self._read_only)
            created = False
        except FileNotFoundError:
            if self._read_only:
                raise
            fd = disk.open(self.path, exclusive=True)
            created = True
        try:
            if created:
                disk.truncate(fd, self._room(0))
            self._length = disk.length(fd)
            self._entries = 0 if created else self._length // self.ENTRY_SIZE
            self._reserved = self._entries * self.ENTRY_SIZE
            self._remap(fd)
        finally:
            disk.close(fd)
        self._opened = True
        self._on_entries_changed()

    def resize(self, length_bytes: int) -> bool:
        """Set the file's length, rounded down to whole entries, and map it again. True if it changed."""
        self.open()
        rounded = self._round(length_bytes)
        if rounded == self._length:
            return False
        self._cut(min(self._entries, rounded // self.ENTRY_SIZE), rounded)
        return True

    def preallocate(self) -> None:
        """Make room for an active segment."""
        self.resize(self._room(self.entries))

    def trim_to_valid_size(self) -> None:
        """Cut the file to its entries."""
        self.resize(self.entries * self.ENTRY_SIZE)

    def reset(self, entries_max: int | None = None) -> None:
        """Drop every entry and make room for the next ones, `entries_max` if that is known: a rebuild starts here. Also repairs
        a file of an impossible length."""
        room = self._room(0)
        self._cut(0, room if entries_max is None else min(room, entries_max * self.ENTRY_SIZE), create=True)
        self._opened = True

    def close(self) -> None:
        """Trim and unmap. The next look-up may open the file again."""
        if self._opened and not self._read_only:
            self.trim_to_valid_size()
        self.release()

    def release(self) -> None:
        """Unmap without touching the file: it was renamed or deleted, or its directory has failed."""
        self._unmap()
        self._opened = False

    def update_parent_dir(self, directory: str) -> None:
        """Follow the rename of the directory."""
        self.path = os.path.join(directory, os.path.basename(self.path))  # noqa: PTH119

    # -- truncation and checks

    @abstractmethod
    def truncate_to(self, offset: int) -> None:
        """Drop every entry whose offset is at or above `offset`."""

    def sanity_check(self) -> None:
        """Raise `CorruptIndex` if the index cannot be right. Cheap: reads only the first and the last entry."""
        self.open()
        if self._length % self.ENTRY_SIZE:
            raise CorruptIndex(f"{self.path}: {self._length} bytes are not a multiple of {self.ENTRY_SIZE}")
        if self._entries:
            self._check_ends()

    @abstractmethod
    def _check_ends(self) -> None:
        """Raise `CorruptIndex` if the first or the last entry (they may be the same one) cannot be right."""

    def _check_offsets(self, first: int, last: int, entry: object) -> None:
        if min(first, last) < self.base_offset:
            raise CorruptIndex(f"{self.path}: entry {entry} is below the base offset {self.base_offset}")

    def truncate(self) -> None:
        """Drop every entry; the length stays."""
        self.open()
        self._cut(0, self._length)

    # -- for the two kinds

    @abstractmethod
    def _on_entries_changed(self) -> None:
        """Read the last entry again: the number of entries, or the map, has changed."""

    @abstractmethod
    def _on_unmap(self) -> None:
        """Release every view of the map; otherwise it cannot be closed."""

    def _cut(self, entries: int, length: int, *, create: bool = False) -> None:
        """Keep `entries` entries in a file of `length` bytes, and map it again.

        The file is cut to its entries before it gets its length, so that the rest is a hole that reads as zeros. No stale
        entry can come back, and no entry is overwritten through the map.
        """
        disk = self._disk
        fd = disk.open(self.path, create=create)  # before the unmap: without a descriptor the index stays as it is
        try:
            if self._map is None and length:
                # A map keeps a descriptor, and this index frees none for it: try to open one before changing anything.
                disk.close(disk.open(self.path))
            self._cut_file(fd, entries, length)
        finally:
            disk.close(fd)
        self._on_entries_changed()

    def _cut_file(self, fd: int, entries: int, length: int) -> None:
        valid = entries * self.ENTRY_SIZE
        disk = self._disk
        try:
            self._unmap()
            disk.truncate(fd, valid)
            if length != valid:
                disk.truncate(fd, length)
            self._length, self._entries, self._reserved = length, entries, valid
            self._remap(fd)
        except OSError as error:
            raise descriptors.half_way(error, self.path) from error

    def reserve_entry(self) -> None:
        """Reserve disk blocks for one more entry, so that writing it cannot fail."""
        end = (self._entries + 1) * self.ENTRY_SIZE
        if end > self._reserved:
            self._reserve(end)

    def _reserve(self, end: int) -> None:
        """Reserve disk blocks at least up to `end`."""
        if end > self._length:
            raise BrokenInvariant(f"{self.path}: entry past the end of the index ({end} > {self._length} bytes)")
        target = min(-(-end // RESERVE_BYTES) * RESERVE_BYTES, self._length)
        disk = self._disk
        fd = disk.open(self.path)
        try:
            disk.reserve(fd, self._reserved, target - self._reserved)
        finally:
            disk.close(fd)
        self._reserved = target

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= RELATIVE_OFFSET_MAX:
            raise BrokenInvariant(
                f"{self.path}: offset {offset} does not fit an index that starts at {self.base_offset}"
            )
        return relative

    def _room(self, entries: int) -> int:
        """Return the file length for an active segment: `max_index_bytes`, but at least the present entries and one more.
        `segment.index.bytes` may have become smaller, and a time index gets an entry at the roll, however full it is."""
        return max(self._round(self.max_index_bytes), (entries + 1) * self.ENTRY_SIZE)

    def _round(self, length_bytes: int) -> int:
        return length_bytes - length_bytes % self.ENTRY_SIZE

    def _remap(self, fd: int) -> None:
        # An empty file cannot be mapped, and need not be.
        self._map = self._disk.map(fd, self._length, read_only=self._read_only) if self._length else None

    def _unmap(self) -> None:
        self._on_unmap()
        if self._map is not None:
            self._disk.unmap(self._map)
            self._map = None

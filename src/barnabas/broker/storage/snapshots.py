"""The `.snapshot` files of a partition: lists them, takes new ones, and deletes those that are useless.

Owner: the log; the loading thread while it is loaded.
"""

import logging
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

from barnabas.base.host.disk import Disk
from barnabas.broker.storage import names, producer_snapshot
from barnabas.broker.storage.producer_entry import ProducerEntry
from barnabas.broker.storage.producer_state import ProducerStateManager

logger = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    offset: int
    path: str
    disk: Disk

    def read(self) -> list[ProducerEntry]:
        """Read the file. Any thread. Raises `CorruptSnapshot`, or `FileNotFoundError`."""
        return producer_snapshot.read(self.path, disk=self.disk)


class ProducerSnapshots:
    """`offsets` ascending. A snapshot at an offset reflects every batch below it."""

    __slots__ = ("_disk", "directory", "offsets")

    def __init__(self, directory: str, disk: Disk, offsets: list[int] | None = None) -> None:
        self.directory = directory
        self._disk = disk
        self.offsets = sorted(offsets or ())

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def newest(self, *, at_most: int) -> Snapshot | None:
        at = bisect_right(self.offsets, at_most)
        return Snapshot(self.offsets[at - 1], self.path(self.offsets[at - 1]), self._disk) if at else None

    def path(self, offset: int, transient: str = "") -> str:
        return f"{self.directory}/{names.snapshot_file(offset, transient)}"

    def take(self, producers: ProducerStateManager, *, sync: bool) -> str | None:
        """Write the state at `map_end_offset`; return the file's path, or None if the last snapshot has the same state."""
        if not producers.needs_snapshot:
            return None
        offset = producers.map_end_offset
        path = self.path(offset)
        producer_snapshot.write(path, producers.snapshot_entries(), sync=sync, disk=self._disk)
        producers.on_snapshot_taken()
        if offset not in self.offsets:
            insort(self.offsets, offset)
        return path

    def put(self, offset: int, entries: Sequence[ProducerEntry]) -> str:
        """Add a snapshot that was taken elsewhere; return the file's path."""
        path = self.path(offset)
        producer_snapshot.write(path, entries, sync=False, disk=self._disk)
        if offset not in self.offsets:
            insort(self.offsets, offset)
        return path

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
            self._disk.unlink(self.path(offset))

    def drop(self, snapshot: Snapshot, why: str) -> None:
        """Delete a snapshot that cannot be read."""
        logger.warning(
            "[log directory %s] deleting an unreadable producer snapshot, nothing to do: %s", self.directory, why
        )
        self.remove(snapshot.offset)

    def mark_deleted(self, offset: int) -> str | None:
        """Rename a snapshot for a later deletion; return the new path, or None if there is no such snapshot."""
        if offset not in self.offsets:
            return None
        self.offsets.remove(offset)
        target = self.path(offset, names.DELETED_SUFFIX)
        return target if self._disk.rename_if_exists(self.path(offset), target) else None

    def remove_stray(self, base_offsets: list[int]) -> None:
        """Delete snapshots that are not at the start of a segment. Keep the newest one if it is past the last segment's start:
        a clean shutdown wrote it at the log end."""
        known = set(base_offsets)
        stray = [offset for offset in self.offsets if offset not in known]
        newest = stray.pop() if stray and stray[-1] > max(known, default=-1) else None
        for offset in stray:
            if offset != newest:
                self.remove(offset)

    def remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Delete snapshots at or below the log start (their producers have no records) and above the end (truncated)."""
        for offset in [o for o in self.offsets if o <= log_start_offset or o > log_end_offset]:
            self.remove(offset)

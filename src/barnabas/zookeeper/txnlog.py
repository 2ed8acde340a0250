"""The transaction log in ZooKeeper's own format: `version-2/log.<zxid>`, see docs/formats/zookeeper-txnlog.md.

Writing: zeros are written ahead of the records, so that a flush only touches allocated blocks (about a third faster than
growing the file). A reader takes a length of zero for the end.

Reading: a bad record in the last flush is a write that a crash cut short. No part of that flush was acknowledged, so the log
ends at that record whatever follows: a power cut may lose an unsynced page and keep a later one. A bad record before the last
flush is damage, and is refused. The header stores where the last flush began, in a field that ZooKeeper does not use. It is
written with the flush, so it may be one flush old.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from barnabas.base.errors import BarnabasError, Malformed
from barnabas.base.host.disk import REAL_DISK, Disk, DiskReader, write_fully
from barnabas.zookeeper import txns
from barnabas.zookeeper.txns import Txn, TxnHeader

FILE_HEADER = struct.Struct(">4siq")
MAGIC = b"ZKLG"
VERSION = 2
#: The last field of the header. ZooKeeper writes its database id there, 0, and does not read it. Here it stores where the
#: last flush began.
_MARK_AT = 8
_MARK = struct.Struct(">q")
#: checksum, length
RECORD_HEADER = struct.Struct(">qi")
END_OF_RECORD = b"B"

_PAD_BYTES_MIN = 64 << 10
_PAD_BYTES_MAX = 4 << 20


class StoreFault(BarnabasError):
    """The data directory cannot be used; the message says which file, why, and what to do."""


def file_name(zxid: int) -> str:
    return f"log.{zxid:x}"


def zxid_of(name: str, prefix: str) -> int | None:
    head, dot, tail = name.partition(".")
    if head != prefix or not dot:
        return None
    try:
        return int(tail, 16)
    except ValueError:
        return None


def sorted_files(folder: Path, prefix: str, disk: Disk = REAL_DISK) -> list[tuple[int, Path]]:
    """Return (zxid, path) of the files `prefix.<zxid>`, oldest first."""
    found = []
    for name in disk.listdir(str(folder)):
        zxid = zxid_of(name, prefix)
        if zxid is not None:
            found.append((zxid, folder / name))
    return sorted(found)


def frame(payload: bytes) -> bytes:
    return RECORD_HEADER.pack(zlib.adler32(payload), len(payload)) + payload + END_OF_RECORD


class LogWriter:
    """Appends to the current log file. Owner: the log thread, once the server runs.

    Invariant: bytes up to `_at` are records; from there to `_allocated` they are zeros.
    """

    def __init__(self, folder: Path, *, disk: Disk = REAL_DISK, sync: bool = True) -> None:
        """Without `sync` writes only reach the page cache (`forceSync=no`)."""
        self._folder = folder
        self._disk = disk
        self._sync = sync
        self._fd = -1
        self._at = 0
        self._allocated = 0

    def append(self, first_zxid: int, records: bytes) -> None:
        """Write framed records and make them durable. After an OSError the writer is unusable, and the caller must stop."""
        opened = self._fd < 0
        if opened:
            self._open(first_zxid)
        else:
            write_fully(self._disk, self._fd, _MARK.pack(self._at), _MARK_AT)
        self._write(records)
        if self._sync:
            self._disk.fdatasync(self._fd)
        if opened:
            self._disk.fsync_dir(str(self._folder))

    def _open(self, first_zxid: int) -> None:
        path = self._folder / file_name(first_zxid)
        # Recovery has removed any file of this name without records. If another one exists, that is a bug, and `exclusive`
        # fails.
        self._fd = self._disk.open(str(path), exclusive=True)
        self._at = self._allocated = 0
        self._write(FILE_HEADER.pack(MAGIC, VERSION, FILE_HEADER.size))

    def _write(self, data: bytes) -> None:
        end = self._at + len(data)
        if end > self._allocated:
            pad = min(max(self._allocated, _PAD_BYTES_MIN), _PAD_BYTES_MAX)
            target = end + pad
            self._disk.pwrite(self._fd, bytes(target - end), end)
            self._allocated = target
        write_fully(self._disk, self._fd, data, self._at)
        self._at = end

    def roll(self) -> None:
        """Start a new file at the next record."""
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                self._disk.truncate(fd, self._at)
            finally:
                self._disk.close(fd)


class LogEnd(NamedTuple):
    #: The end of the last valid record.
    offset: int
    #: Whether anything other than zeros follows.
    torn: bool


class TxnLogReader:
    """Reads one log file; after the iteration, `end` describes its end."""

    def __init__(self, path: Path, disk: Disk = REAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self.end = LogEnd(0, torn=False)

    def __iter__(self) -> Iterator[tuple[TxnHeader, Txn]]:
        disk = self._disk
        with io.BufferedReader(DiskReader(disk, str(self._path))) as file:
            size = disk.size(str(self._path))
            head = file.read(FILE_HEADER.size)
            if len(head) < FILE_HEADER.size or FILE_HEADER.unpack(head)[:2] != (MAGIC, VERSION):
                # A crash right after the creation leaves the file short or all zero; otherwise it is no log.
                if len(head) == FILE_HEADER.size and head.strip(b"\0"):
                    raise StoreFault(f"{self._path} is not a ZooKeeper transaction log")
                self.end = LogEnd(0, torn=True)
                return
            mark: int = FILE_HEADER.unpack(head)[2]
            at = FILE_HEADER.size
            while True:
                payload, after = _next_record(file, at, size)
                if payload is None:
                    break
                try:
                    header, txn = txns.decode(payload)
                except Malformed as error:
                    raise StoreFault(f"{self._path} at byte {at}: {error}, though its checksum is right") from error
                yield header, txn
                at = after
            self.end = self._judge_tail(file, at, size, mark)

    def _judge_tail(self, file: BinaryIO, at: int, size: int, mark: int) -> LogEnd:
        """`mark`: the start of the last flush or of the one before it; 0 if the writer did not store it."""
        if mark > at:
            # Everything before it was on disk when that flush began.
            raise self._damaged(at)
        if _only_zeros(file, at):
            return LogEnd(at, torn=False)
        # Without a mark, only a valid record right after the bad one distinguishes damage from a torn tail.
        file.seek(at)
        head = file.read(RECORD_HEADER.size)
        if not mark and len(head) == RECORD_HEADER.size:
            _checksum, length = RECORD_HEADER.unpack(head)
            behind = at + RECORD_HEADER.size + length + 1
            if length > 0 and behind < size and _next_record(file, behind, size)[0] is not None:
                raise self._damaged(at)
        return LogEnd(at, torn=True)

    def _damaged(self, at: int) -> StoreFault:
        return StoreFault(
            f"{self._path} is damaged at byte {at}: later transactions were acknowledged, so no crash has cut this write off."
            " Restore the file from a backup. To move it and all later logs away gives up every change since the snapshot"
            " before it."
        )


def _next_record(file: BinaryIO, at: int, size: int) -> tuple[bytes | None, int]:
    """Return the payload of the record at `at` and its end; None if there is no valid record."""
    file.seek(at)
    head = file.read(RECORD_HEADER.size)
    if len(head) < RECORD_HEADER.size:
        return None, at
    checksum, length = RECORD_HEADER.unpack(head)
    if length <= 0 or at + RECORD_HEADER.size + length + 1 > size:
        return None, at
    payload = file.read(length + 1)
    if len(payload) <= length or payload[length:] != END_OF_RECORD:
        return None, at
    payload = payload[:length]
    if zlib.adler32(payload) != checksum:
        return None, at
    return payload, at + RECORD_HEADER.size + length + 1


def _only_zeros(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    while chunk := file.read(1 << 16):
        if chunk.strip(b"\0"):
            return False
    return True


def cut(path: Path, offset: int, disk: Disk = REAL_DISK) -> None:
    """Truncate the file at `offset`, durably."""
    fd = disk.open(str(path))
    try:
        disk.truncate(fd, offset)
        disk.fsync(fd)
    finally:
        disk.close(fd)

"""The data directory: recovery, snapshots, purging. The files are ZooKeeper's, under `version-2/`.

Recovery: load the newest complete snapshot, then apply every later transaction from the log, in order and without a gap.
"""

import itertools
import logging
import os
from pathlib import Path

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import REAL_DISK, TMP_SUFFIX, Disk, write_fully
from barnabas.zookeeper import snapshot, txnlog
from barnabas.zookeeper.machine import Machine
from barnabas.zookeeper.txnlog import StoreFault, TxnLogReader

_log = logging.getLogger(__name__)

SECRET_FILE = "session.secret"
_SECRET_BYTES = 32


class Store:
    """Owner: the event loop, until the log thread takes over the writer."""

    def __init__(self, data_dir: Path, *, tick_ms: int, snapshots_kept: int, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self.folder = data_dir / "version-2"
        self._tick_ms = tick_ms
        self._snapshots_kept = snapshots_kept
        self._lock_fd = -1
        #: Number of transactions that were replayed at the start.
        self.replayed = 0

    def open(self) -> None:
        """Lock the directory for this process. Raises `StoreFault`, or OSError if the directory cannot be used."""
        self._disk.makedirs(str(self.folder))
        try:
            self._lock_fd = self._disk.lock(str(self._data_dir / ".lock"))
        except BlockingIOError as error:
            raise StoreFault(f"{self._data_dir} is in use by another server") from error

    def close(self) -> None:
        if self._lock_fd >= 0:
            self._disk.close(self._lock_fd)
            self._lock_fd = -1

    def secret(self) -> bytes:
        """Return the secret for session passwords; like the sessions it survives restarts, on disk."""
        path = str(self._data_dir / SECRET_FILE)
        if self._disk.exists(path):
            secret = self._disk.read_file(path)
            if len(secret) == _SECRET_BYTES:
                return secret
            _log.warning("%s is damaged: clients that reconnect will get new sessions", path)
        secret = os.urandom(_SECRET_BYTES)
        fd = self._disk.open(path, create=True, truncate=True, mode=0o600)
        try:
            write_fully(self._disk, fd, secret, 0)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        return secret

    # ---- recovery -----------------------------------------------------------------------------------------------------

    def recover(self) -> Machine:
        """Return the recovered machine: it has everything that was acknowledged, and nothing that was not logged."""
        for name in self._disk.listdir(str(self.folder)):
            if name.endswith(TMP_SUFFIX):
                self._disk.unlink(str(self.folder / name))
        machine = self._load_snapshot()
        logs = self._files("log")
        self._check_reach(machine, logs)
        # Start with the last file that begins at or before the first transaction that the snapshot lacks.
        first = max((i for i, (zxid, _) in enumerate(logs) if zxid <= machine.last_zxid + 1), default=0)
        for index in range(first, len(logs)):
            self._replay(logs[index][1], machine, is_last=index == len(logs) - 1)
        return machine

    def _load_snapshot(self) -> Machine:
        snapshots = self._files("snapshot")
        for zxid, path in reversed(snapshots):
            machine = Machine(tick_ms=self._tick_ms)
            try:
                snapshot.load(path, zxid, machine, disk=self._disk)
            except Malformed as error:
                _log.warning(
                    "[zookeeper] cannot use %s, trying an older snapshot; restore it from a backup if it is needed: %s",
                    path,
                    error,
                )
                continue
            return machine
        machine = Machine(tick_ms=self._tick_ms)
        if not snapshots and not self._files("log"):
            # Write an empty snapshot, as ZooKeeper does: its own server refuses a directory with logs but without a snapshot.
            writer = snapshot.SnapshotWriter(self.folder, 0, disk=self._disk)
            for piece in snapshot.slices(machine):
                writer.write(piece)
            # No sync needed: if a crash loses it, the log begins at 1 and is complete.
            writer.finish(sync=False)
        return machine

    def _check_reach(self, machine: Machine, logs: list[tuple[int, Path]]) -> None:
        if machine.last_zxid > 0 or not logs:
            if not logs and machine.last_zxid == 0 and len(self._files("snapshot")) > 1:
                raise StoreFault(f"no snapshot in {self.folder} can be read, and there is no log")
            return
        if logs[0][0] > 1:
            raise StoreFault(
                f"no snapshot in {self.folder} can be read, and its logs begin at zxid 0x{logs[0][0]:x}:"
                " earlier transactions are lost. Restore a snapshot from a backup."
            )

    def _replay(self, path: Path, machine: Machine, *, is_last: bool) -> None:
        reader = TxnLogReader(path, self._disk)
        records = 0
        for header, txn in reader:
            records += 1
            if header.zxid <= machine.last_zxid:
                continue
            # An ensemble starts a new epoch, the upper half of a zxid, at 0; within an epoch there is no gap.
            if header.zxid != machine.last_zxid + 1 and header.zxid >> 32 == machine.last_zxid >> 32:
                raise StoreFault(
                    f"{path}: zxid 0x{header.zxid:x} follows 0x{machine.last_zxid:x}, transactions are missing"
                )
            machine.replay(header, txn)
            self.replayed += 1
        if reader.end.torn:
            if not is_last:
                raise StoreFault(f"{path} is damaged at byte {reader.end.offset}, and later logs exist")
            _log.warning("%s: dropped a write that was cut short at byte %d", path, reader.end.offset)
            txnlog.cut(path, reader.end.offset, self._disk)
        if records == 0 and is_last:
            # Remove the file: its name is the next zxid, which the next write needs.
            self._disk.unlink(str(path))

    # ---- snapshots ----------------------------------------------------------------------------------------------------

    def begin_snapshot(self, zxid: int) -> snapshot.SnapshotWriter:
        return snapshot.SnapshotWriter(self.folder, zxid, disk=self._disk)

    def writer(self, *, sync: bool = True) -> txnlog.LogWriter:
        return txnlog.LogWriter(self.folder, disk=self._disk, sync=sync)

    def purge(self) -> None:
        """Keep the newest snapshots, and every log that the oldest of them needs."""
        snapshots = self._files("snapshot")
        kept = snapshots[-self._snapshots_kept :]
        if not kept:
            return
        oldest_zxid = kept[0][0]
        for _zxid, path in snapshots[: -len(kept)]:
            self._disk.unlink(str(path))
        logs = self._files("log")
        for (_, path), (next_zxid, _) in itertools.pairwise(logs):
            if next_zxid <= oldest_zxid + 1:
                self._disk.unlink(str(path))

    def size_bytes(self, prefix: str) -> int:
        return sum(self._disk.size(str(path)) for _, path in self._files(prefix))

    def _files(self, prefix: str) -> list[tuple[int, Path]]:
        return txnlog.sorted_files(self.folder, prefix, self._disk)

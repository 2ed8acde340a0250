"""The file system for storage and the embedded ZooKeeper. Every file operation goes through this module.

Production uses `Disk`, a thin layer over `os`. Tests pass a subclass that fails, or an in-memory model whose power can be
cut. No code in storage or ZooKeeper calls `os`, `open` or `mmap` for a file; a test checks that.
"""

import fcntl
import io
import mmap
import os
import shutil
import socket
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.base.host import kernel
from barnabas.base.host.kernel import WritableBuffer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
#: A file's bytes in memory. Writes go to the file. `Disk.unmap` ends it.
FileMap: TypeAlias = mmap.mmap | memoryview

#: Suffix of a file that is being written as a whole; a crash may leave such a file behind.
TMP_SUFFIX: Final = ".tmp"
#: Step at which residency is probed: the kernel reads and evicts long runs, so the pages between have the same state.
PROBE_STEP_BYTES: Final = 256 * 1024


class Disk:
    """Owner: none, any thread. Raises `OSError`; the caller knows which log directory then goes offline.

    Descriptors belong to this disk; `os` functions must not get them.
    """

    __slots__ = ()

    # -- open files

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
        read_only: bool = False,
        mode: int = 0o644,
    ) -> int:
        """Open a file. `exclusive`: create it, and fail if it exists."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if exclusive:
            flags |= os.O_CREAT | os.O_EXCL
        elif create:
            flags |= os.O_CREAT
        if truncate:
            flags |= os.O_TRUNC
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        return os.pwrite(fd, data, position)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        return os.pread(fd, size_bytes, position)

    def preadinto(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        return kernel.preadinto(fd, buffer, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        """Allocate blocks for these bytes, so that a write through a map cannot find the disk full."""
        kernel.reserve(fd, position, size_bytes)

    def length(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        """Map the first `length` bytes, which must exist. The descriptor may be closed at once."""
        return mmap.mmap(fd, length, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE)

    def unmap(self, mapped: FileMap) -> None:
        """End the map. Raises `BufferError` while a view of it exists."""
        if isinstance(mapped, mmap.mmap):
            mapped.close()
        else:
            mapped.release()

    # -- sending

    def read_now(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        """Read bytes that are in memory. `BlockingIOError` if none are; another `OSError` if the kernel cannot tell."""
        return kernel.read_now(fd, buffer, position)

    def is_resident(self, fd: int, position: int, size_bytes: int) -> bool:
        """Return whether sending this range will not wait for the disk, as far as probing one page per step can tell."""
        probe = bytearray(1)
        last = position + size_bytes - 1
        at = position
        while True:
            try:
                self.read_now(fd, probe, at)
            except BlockingIOError:
                return False
            except OSError:
                # A file system without RWF_NOWAIT (tmpfs on old kernels), or another system: it never waits, or cannot tell.
                return True
            if at >= last:
                return True
            at = min(at + PROBE_STEP_BYTES, last)

    def load(self, fd: int, position: int, size_bytes: int) -> None:
        """Read a range and discard it, so that a later send finds it in memory. Blocks."""
        scratch = bytearray(min(size_bytes, 256 * 1024))
        end = position + size_bytes
        while position < end:
            got = self.preadinto(fd, memoryview(scratch)[: end - position], position)
            if got == 0:
                return
            position += got

    def sendfile(self, sock: socket.socket, fd: int, position: int, size_bytes: int) -> int:
        return kernel.sendfile(sock, fd, position, size_bytes)

    # -- durability

    def fsync(self, fd: int) -> None:
        kernel.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Like `fsync`, but without the file's times."""
        kernel.fdatasync(fd)

    def fsync_dir(self, path: str) -> None:
        """Make the renames and deletions in `path` durable. A deleted directory needs nothing."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def fsync_path(self, path: str) -> None:
        """Make a small file durable, unless it was deleted in the meantime."""
        try:
            fd = self.open(path, read_only=True)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    # -- names

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def rename_if_exists(self, source: str, target: str) -> bool:
        try:
            self.rename(source, target)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, path: str) -> bool:
        """Delete a file; return False if it did not exist."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True

    def mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102

    def makedirs(self, path: str) -> None:
        """Create a directory with its parents, if it does not exist. Only this user can read it: it may have records and
        secrets."""
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def listdir(self, path: str) -> list[str]:
        """List names, sorted, so that segments load in the order of their offsets."""
        return sorted(os.listdir(path))  # noqa: PTH208

    def subdirs(self, path: str) -> list[str]:
        """List the names of subdirectories, sorted."""
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)  # noqa: PTH112

    def size(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def modified_ns(self, path: str) -> int:
        return os.stat(path).st_mtime_ns  # noqa: PTH116

    def modified_ms(self, path: str) -> int:
        return self.modified_ns(path) // 1_000_000

    def set_modified_ns(self, path: str, modified_ns: int) -> None:
        os.utime(path, ns=(modified_ns, modified_ns))

    def space_bytes(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the volume."""
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def lock(self, path: str) -> int:
        """Lock the file for this process until the descriptor is closed. `BlockingIOError` if another process has the lock."""
        fd = self.open(path, create=True)
        try:
            # Two locks: flock excludes a second broker in this process, lockf (POSIX) a broker on a JVM.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close(fd)
            raise
        return fd

    # -- whole files

    def read_file(self, path: str) -> bytes:
        fd = self.open(path, read_only=True)
        try:
            # Ask for one more byte than the length, so that the end of the file shows at once.
            data = self.pread(fd, self.length(fd) + 1, 0)
            while more := self.pread(fd, 1 << 20, len(data)):
                data += more
            return data
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: ReadableBuffer, *, sync: bool = True, mode: int = 0o644) -> None:
        """Replace the file so that after a power cut `path` has either its old contents or all of `data`."""
        temporary = path + TMP_SUFFIX
        fd = self.open(temporary, create=True, truncate=True, mode=mode)
        try:
            write_fully(self, fd, data, 0)
            if sync:
                self.fsync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if sync:
            self.fsync_dir(os.path.dirname(path) or ".")  # noqa: PTH120


#: The default, also for tools.
REAL_DISK: Final = Disk()


def write_fully(disk: Disk, fd: int, data: ReadableBuffer, position: int) -> None:
    """Repeat `pwrite` until everything is written. One call is enough except for signals and nearly full disks."""
    written = disk.pwrite(fd, data, position)
    size = len(data)
    if written == size:
        return
    with memoryview(data) as view:
        while written < size:
            written += disk.pwrite(fd, view[written:], position + written)


class DiskReader(io.RawIOBase):
    """Reads a file of a disk from its start. Wrap it in `io.BufferedReader`."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._fd = disk.open(path, read_only=True)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        got = self._disk.preadinto(self._fd, memoryview(buffer), self._at)
        self._at += got
        return got

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._disk.length(self._fd)}[whence]
        self._at = base + offset
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._disk.close(self._fd)

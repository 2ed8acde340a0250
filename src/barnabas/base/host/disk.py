"""The file system as storage and the embedded ZooKeeper see it: one seam through which every file operation goes.

Production uses `Disk` as it is: a thin name for `os`. Tests hand in a subclass that fails, or a model of a disk in memory
whose power can be cut. Nobody above calls `os`, `open` or `mmap` for a file; a test keeps it so.
"""

import fcntl
import io
import mmap
import os
import shutil
import socket
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WritableBuffer: TypeAlias = bytearray | memoryview
ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
#: A file's bytes in memory. Stores go to the file. `Disk.unmap` ends it.
FileMap: TypeAlias = mmap.mmap | memoryview

#: What a file is called while it is being written whole; a crash may leave one behind.
TMP_SUFFIX: Final = ".tmp"
#: Residency is probed at this step: the kernel reads and evicts in long runs, so pages in between come and go together.
PROBE_STEP_BYTES: Final = 256 * 1024


class Disk:
    """Owner: none, any thread. Raises `OSError`; the caller knows which log directory that takes offline.

    Descriptors are the disk's own: they mean nothing to `os`.
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
        """`exclusive`: create it, and fail where it exists."""
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
        return os.preadv(fd, (buffer,), position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        """Have blocks for these bytes, so that a store through a map cannot find the disk full."""
        os.posix_fallocate(fd, position, size_bytes)

    def length(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        """The first `length` bytes, which the file has. The descriptor may be closed at once."""
        return mmap.mmap(fd, length, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE)

    def unmap(self, mapped: FileMap) -> None:
        """`BufferError` while a view of it exists."""
        if isinstance(mapped, mmap.mmap):
            mapped.close()
        else:
            mapped.release()

    # -- sending

    def read_now(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        """Reads what is in memory of it. `BlockingIOError` if nothing is; another `OSError` if the kernel cannot tell."""
        return os.preadv(fd, (buffer,), position, os.RWF_NOWAIT)

    def is_resident(self, fd: int, position: int, size_bytes: int) -> bool:
        """Whether sending this range will not wait for the disk, as far as probing a page in each step can tell."""
        probe = bytearray(1)
        last = position + size_bytes - 1
        at = position
        while True:
            try:
                self.read_now(fd, probe, at)
            except BlockingIOError:
                return False
            except OSError:
                # A file system without RWF_NOWAIT (tmpfs on old kernels): nothing to wait for, or nothing to be known.
                return True
            if at >= last:
                return True
            at = min(at + PROBE_STEP_BYTES, last)

    def load(self, fd: int, position: int, size_bytes: int) -> None:
        """Read a range and throw it away, so that a later send finds it in memory. Blocks."""
        scratch = bytearray(min(size_bytes, 256 * 1024))
        end = position + size_bytes
        while position < end:
            got = self.preadinto(fd, memoryview(scratch)[: end - position], position)
            if got == 0:
                return
            position += got

    def sendfile(self, sock: socket.socket, fd: int, position: int, size_bytes: int) -> int:
        return os.sendfile(sock.fileno(), fd, position, size_bytes)

    # -- durability

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """As `fsync`, but without the file's times."""
        os.fdatasync(fd)

    def fsync_dir(self, path: str) -> None:
        """Make the renames and unlinks in `path` durable. A directory that is gone needs none."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def fsync_path(self, path: str) -> None:
        """Make a small file durable that may have been deleted meanwhile."""
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
        """False where it was gone already."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True

    def mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102

    def makedirs(self, path: str) -> None:
        """With its parents; no error where it is there. Others may not look into what we make: it holds records and secrets."""
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def listdir(self, path: str) -> list[str]:
        """Sorted: segments load in the order of their offsets."""
        return sorted(os.listdir(path))  # noqa: PTH208

    def subdirs(self, path: str) -> list[str]:
        """Names of the directories in it, sorted."""
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
        """(total, usable) of the volume."""
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def lock(self, path: str) -> int:
        """Hold the file for this process until the descriptor is closed. `BlockingIOError` where another one has it."""
        fd = self.open(path, create=True)
        try:
            # Both kinds: flock keeps out a second broker in this process, lockf (POSIX) one that runs on a JVM.
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
            # One more byte than there is: the end shows at once.
            data = self.pread(fd, self.length(fd) + 1, 0)
            while more := self.pread(fd, 1 << 20, len(data)):
                data += more
            return data
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: ReadableBuffer, *, sync: bool = True, mode: int = 0o644) -> None:
        """`path` holds either what it held or all of `data`, whenever the power goes."""
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


#: For tools, and as a default.
REAL_DISK: Final = Disk()


def write_fully(disk: Disk, fd: int, data: ReadableBuffer, position: int) -> None:
    """`pwrite` until all is written: the first call does it, but for signals and nearly full disks."""
    written = disk.pwrite(fd, data, position)
    size = len(data)
    if written == size:
        return
    with memoryview(data) as view:
        while written < size:
            written += disk.pwrite(fd, view[written:], position + written)


class DiskReader(io.RawIOBase):
    """A file of a disk, read from its start: to be wrapped in `io.BufferedReader`."""

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

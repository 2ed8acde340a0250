"""The file system as the log sees it: one seam through which every write, rename and unlink of log data goes.

Production uses `Disk` as it is: a thin name for `os`. Tests hand in a subclass that fails, or that remembers what was
synced, so that a crash can be tried at every step. Memory-mapped indexes are not behind this seam: they are rebuilt
from the log whenever they are in doubt.
"""

import os
from typing import TypeAlias

WritableBuffer: TypeAlias = bytearray | memoryview
ReadableBuffer: TypeAlias = bytes | bytearray | memoryview


class Disk:
    """Owner: none, any thread. Raises `OSError`; the caller knows which log directory that takes offline."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

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

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

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
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

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

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def listdir(self, path: str) -> list[str]:
        """Sorted: segments load in the order of their offsets."""
        return sorted(os.listdir(path))  # noqa: PTH208

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def size(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116


def write_fully(disk: Disk, fd: int, data: ReadableBuffer, position: int) -> None:
    """`pwrite` until all is written: the first call does it, but for signals and nearly full disks."""
    written = disk.pwrite(fd, data, position)
    size = len(data)
    if written == size:
        return
    with memoryview(data) as view:
        while written < size:
            written += disk.pwrite(fd, view[written:], position + written)

"""What Linux can do and other POSIX systems cannot, or only in another way. Each has a plain way here, for macOS and the BSDs.

`BARNABAS_POSIX_ONLY=1` chooses the plain ways on Linux, too, and asyncio's loop instead of uvloop. `make test` runs a cluster
with it, and `BARNABAS_POSIX_ONLY=1 make test TESTS=tests/scenarios` all scenarios. No other module calls what only Linux has; a
test checks that.
"""

import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
WritableBuffer: TypeAlias = bytearray | memoryview

_POSIX_ONLY: Final = os.environ.get("BARNABAS_POSIX_ONLY") == "1"
#: Whether the kernel is Linux, and may be used as such.
IS_LINUX: Final = sys.platform.startswith("linux") and not _POSIX_ONLY
#: Folder in memory, if there is one.
SHARED_MEMORY: Final = Path("/dev/shm") if IS_LINUX else None
#: Flag of `socket.send`: more follows at once, so a packet that is not full may wait.
MORE_FOLLOWS: Final = socket.MSG_MORE if IS_LINUX else 0

_PR_SET_PDEATHSIG: Final = 1
_FICLONE: Final = 0x40049409
_F_FULLFSYNC: Final = 51
_COPY_BYTES: Final = 1 << 20
#: How often the plain ways look whether a process has ended.
_LOOK_S: Final = 0.05
_LOOK_AT_PARENT_S: Final = 1.0

# --- the event loop ---------------------------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop; with `BARNABAS_POSIX_ONLY` on asyncio's own loop."""
    if _POSIX_ONLY:
        import asyncio

        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


# --- files ------------------------------------------------------------------------------------------------------------


def preadinto(fd: int, buffer: WritableBuffer, position: int) -> int:
    if IS_LINUX:
        return os.preadv(fd, (buffer,), position)
    data = os.pread(fd, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def read_now(fd: int, buffer: WritableBuffer, position: int) -> int:
    """Read bytes that are in memory. `BlockingIOError` if none are; another `OSError` if the system cannot tell.

    A file system without RWF_NOWAIT (tmpfs on old kernels) keeps its files in memory, or cannot tell: there this reads.
    """
    if IS_LINUX:
        try:
            return os.preadv(fd, (buffer,), position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return preadinto(fd, buffer, position)
    raise OSError(errno.EOPNOTSUPP, "this system cannot tell whether a read would wait for the disk")


def reserve(fd: int, position: int, size_bytes: int) -> None:
    """Allocate blocks for these bytes, of which none have been written yet."""
    if IS_LINUX:
        os.posix_fallocate(fd, position, size_bytes)
        return
    # Zeros take blocks, where a longer file alone would have a hole.
    while size_bytes:
        written = os.pwrite(fd, bytes(min(size_bytes, _COPY_BYTES)), position)
        position += written
        size_bytes -= written


def fdatasync(fd: int) -> None:
    """Write a file's data to the disk, and not its times."""
    if IS_LINUX:
        os.fdatasync(fd)
    else:
        fsync(fd)


def fsync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # There fsync leaves the data in the drive's own memory.
        fcntl.fcntl(fd, _F_FULLFSYNC)
    else:
        os.fsync(fd)


def sendfile(sock: socket.socket, fd: int, position: int, size_bytes: int) -> int:
    if IS_LINUX:
        return os.sendfile(sock.fileno(), fd, position, size_bytes)
    return sock.send(os.pread(fd, size_bytes, position))


def copy_data(source: int, target: int, size_bytes: int) -> None:
    """Copy this many bytes to an empty file. On Linux without reading them, sharing blocks where the file system can, and
    without filling holes."""
    if (length := os.fstat(source).st_size) < size_bytes:
        raise OSError(f"the file has {length} bytes, which is {size_bytes - length} too few")
    if not IS_LINUX:
        for at in range(0, size_bytes, _COPY_BYTES):
            os.pwrite(target, os.pread(source, min(_COPY_BYTES, size_bytes - at), at), at)
        return
    is_done = _cloned(source, target)
    os.ftruncate(target, size_bytes)
    at = size_bytes if is_done else 0
    while at < size_bytes:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # the rest of the file is a hole
            raise
        end = min(os.lseek(source, at, os.SEEK_HOLE), size_bytes)
        while at < end:
            at += os.copy_file_range(source, target, end - at, at, at)


def _cloned(source: int, target: int) -> bool:
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


# --- processes --------------------------------------------------------------------------------------------------------


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if IS_LINUX else os.cpu_count() or 1


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd" if IS_LINUX else "/dev/fd").iterdir()))


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    if IS_LINUX:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    else:
        import subprocess

        state = subprocess.check_output(["ps", "-o", "state=", "-p", str(pid)], text=True).strip()
    return state[:1] in ("T", "t")


def watch_child(pid: int) -> int:
    """Return a descriptor that becomes readable when this child has ended. The caller closes it, and waits for the child."""
    if IS_LINUX:
        return os.pidfd_open(pid)
    reader, writer = os.pipe()

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.write(writer, b"!")  # closing it is not enough: children that were forked since have it, too
        os.close(writer)

    threading.Thread(target=wait, name=f"end of process {pid}", daemon=True).start()
    return reader


def wait_until_ended(pid: int, timeout_s: float) -> bool:
    """Wait for a process that may be no child. `ProcessLookupError` if there is none."""
    if IS_LINUX:
        descriptor = os.pidfd_open(pid)
        try:
            return bool(select.select([descriptor], [], [], timeout_s)[0])
        finally:
            os.close(descriptor)
    os.kill(pid, 0)
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(_LOOK_S)
    return False


def end_with_parent() -> None:
    """Have SIGTERM sent to this process when the one that started it ends."""
    parent = os.getppid()
    if IS_LINUX:
        import ctypes  # slow to load, and rarely needed

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    else:
        threading.Thread(target=_watch_parent, args=(parent,), name="end of the parent", daemon=True).start()
    # The parent may have died before this.
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_AT_PARENT_S)
    os.kill(os.getpid(), signal.SIGTERM)

"""A folder in memory for one test: below /dev/shm where there is room, else in the temporary folder.

The page cache keeps a temporary folder in memory as well; below /dev/shm nothing is ever written to a device. A process that is
killed cannot remove its folder, and what is left there takes memory, so the next process that makes one removes it. A lock on a
file in the folder shows whether its owner lives.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from barnabas.base.host.kernel import SHARED_MEMORY

#: Containers often have 64 MB there, which a test can fill.
_ROOM_BYTES_MIN = 256 << 20
_PREFIX = "barnabas-broker-"
_LOCK_FILE = ".owner"


class MemoryFolder:
    def __init__(self, parent: Path | None = None) -> None:
        """`parent`: where to make it, for tests."""
        parent = parent or _parent()
        remove_left_over(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # It gets its name once it is locked: a folder without the file is left alone.
        unnamed = self.path / f"{_LOCK_FILE}.new"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK_FILE)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _parent() -> Path:
    try:
        stat = os.statvfs(SHARED_MEMORY) if SHARED_MEMORY else None
    except OSError:
        stat = None
    if (
        SHARED_MEMORY
        and stat
        and stat.f_frsize * stat.f_bavail >= _ROOM_BYTES_MIN
        and os.access(SHARED_MEMORY, os.W_OK)
    ):
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def remove_left_over(parent: Path) -> None:
    """Folders of this user whose process has ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's folder, or one that has just been removed
            lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)

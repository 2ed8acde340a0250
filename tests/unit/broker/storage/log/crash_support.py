"""Crashes at every step, without touching the code under test.

Two eyes see what a log does to its disk. The injected `Disk` sees every write and fsync of log data. An audit hook of the
interpreter sees every file that any module of this process creates, renames, removes or cuts, and can stop it:
also those of the small files that are not behind the `Disk`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from barnabas.base.host.disk import Disk, ReadableBuffer


class Crash(BaseException):
    """The power goes. Not an `Exception`: nothing may catch it and carry on."""


class Fuse:
    """Counts steps, and crashes at the one it is set to."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.steps: list[str] = []
        self._crash_at: int | None = None
        self._armed = False

    def arm(self, crash_at: int | None) -> None:
        self.steps.clear()
        self._crash_at = crash_at
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def step(self, what: str) -> bool:
        """Record a step; True where the crash is to come now."""
        if not self._armed:
            return False
        self.steps.append(what)
        if self._crash_at is not None and len(self.steps) > self._crash_at:
            self._armed = False
            return True
        return False

    def hit(self, what: str) -> None:
        if self.step(what):
            raise Crash(what)


_fuse: Fuse | None = None
_hooked = False
_PATH_EVENTS = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "os.rmdir": "rmdir"}


def _hook(event: str, args: tuple[object, ...]) -> None:
    fuse = _fuse
    if fuse is None or not event.startswith(("os.", "open")):
        return
    if event == "open":
        path, flags = args[0], args[2]
        if isinstance(flags, int) and flags & os.O_CREAT and str(path).startswith(fuse.root):
            fuse.hit(f"create {Path(str(path)).name}")
    elif event == "os.truncate":
        fuse.hit("truncate")
    elif event in _PATH_EVENTS and str(args[0]).startswith(fuse.root):
        fuse.hit(f"{_PATH_EVENTS[event]} {Path(str(args[0])).name}")


class CrashingDisk(Disk):
    """A disk that knows what was synced, and that a fuse can cut off in the middle of a write."""

    __slots__ = ("fuse", "paths", "synced", "torn_bytes")

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.paths: dict[int, str] = {}
        #: Path of a log file -> bytes that a crash cannot take.
        self.synced: dict[str, int] = {}
        #: How much of the write that the crash interrupts reaches the file.
        self.torn_bytes = 0

    def open(self, path: str, **how: Any) -> int:
        fd = super().open(path, **how)
        self.paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        if self.fuse.step("write"):
            if self.torn_bytes:
                super().pwrite(fd, memoryview(data)[: self.torn_bytes], position)
            raise Crash("write")
        return super().pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:
        """Counted as synced; the hardware is not asked, the test decides what is lost."""
        self.fuse.hit("fsync")
        path = self.paths.get(fd)
        if path is not None:
            self.synced[path] = os.fstat(fd).st_size


class fuse_under:  # noqa: N801  # reads as a statement
    """`with fuse_under(root) as fuse`: the audit hook obeys this fuse, and none afterwards."""

    def __init__(self, root: Path) -> None:
        self._fuse = Fuse(root)

    def __enter__(self) -> Fuse:
        global _fuse, _hooked
        if not _hooked:
            # Hooks stay for the life of the process; without a fuse this one does nothing.
            sys.addaudithook(_hook)
            _hooked = True
        _fuse = self._fuse
        return self._fuse

    def __exit__(self, *exc: object) -> None:
        global _fuse
        _fuse = None

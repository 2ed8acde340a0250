"""What a response may contain besides bytes: a piece of a file that goes to the socket without being read."""

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

#: Residency is probed at this step: the kernel reads and evicts in long runs, so pages in between come and go together.
PROBE_STEP_BYTES = 256 * 1024


class FileRange(Protocol):
    """A piece of a file, pinned: the descriptor stays open until `release`, even if the file is deleted meanwhile."""

    @property
    def fd(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def release(self) -> None: ...


Part = bytes | bytearray | memoryview | FileRange
BYTES = (bytes, bytearray, memoryview)


def release(parts: Iterable[Part]) -> None:
    """Let go of the ranges among them: they will not be sent, or have been."""
    for part in parts:
        if not isinstance(part, BYTES):
            part.release()


def read_small(parts: Sequence[Part], bytes_max: int) -> bytearray | None:
    """All parts in one piece; None where that is more than `bytes_max`, or where reading would wait for the disk."""
    size_bytes = 0
    for part in parts:
        size_bytes += len(part) if isinstance(part, BYTES) else part.size_bytes
        if size_bytes > bytes_max:
            return None
    whole = bytearray(size_bytes)
    view = memoryview(whole)
    at = 0
    for part in parts:
        if isinstance(part, BYTES):
            end = at + len(part)
            view[at:end] = part
        else:
            end = at + part.size_bytes
            try:
                if os.preadv(part.fd, [view[at:end]], part.position, os.RWF_NOWAIT) < part.size_bytes:
                    return None
            except OSError:
                # Not in memory, or a file system that cannot tell.
                return None
        at = end
    return whole


def is_resident(fd: int, position: int, size_bytes: int) -> bool:
    """Whether sending this range will not wait for disk, as far as probing a page in each step can tell."""
    probe = [bytearray(1)]
    last = position + size_bytes - 1
    at = position
    while True:
        try:
            os.preadv(fd, probe, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # A file system without RWF_NOWAIT (tmpfs on old kernels): nothing to wait for, or nothing to be known.
            return True
        if at >= last:
            return True
        at = min(at + PROBE_STEP_BYTES, last)


def load_into_page_cache(fd: int, position: int, size_bytes: int) -> None:
    """Read a range and throw it away, so that a later send finds it in memory. Any thread; blocks."""
    scratch = bytearray(min(size_bytes, 256 * 1024))
    end = position + size_bytes
    while position < end:
        got = os.preadv(fd, [memoryview(scratch)[: end - position]], position)
        if got == 0:
            return
        position += got

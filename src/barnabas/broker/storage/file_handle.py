"""Open files, shared between the parts that read them and the parts that delete them.

Owner: the event loop. A `FileRange` pins its file: the descriptor stays open, and its bytes readable, until `release`,
even when the segment is renamed, deleted or closed meanwhile. The `SegmentPool` bounds how many inactive segments
keep files open, so that thousands of partitions fit in the process's descriptors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk
from barnabas.base.host.kernel import WritableBuffer
from barnabas.base.recent import Recent

if TYPE_CHECKING:
    import socket

    from barnabas.broker.storage.segment import Segment


#: A position beyond the end of any file.
NEVER_CUT: Final = 1 << 63


class OpenFile:
    """A descriptor with a count of its users. Closed when the segment has released it and no pin remains."""

    __slots__ = ("_let_go", "cut_at", "disk", "fd", "path", "pins")

    def __init__(self, disk: Disk, fd: int, path: str) -> None:
        self.disk = disk
        self.fd = fd
        #: The file's path when it was opened, for messages.
        self.path = path
        self.pins = 0
        #: The segment was truncated at this position. The bytes at and after it may have been written over.
        self.cut_at = NEVER_CUT
        self._let_go = False

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        if self.pins <= 0:
            raise BrokenInvariant(f"descriptor {self.fd} was released more often than pinned")
        self.pins -= 1
        if self.pins == 0 and self._let_go:
            self.disk.close(self.fd)

    def let_go(self) -> None:
        """End the segment's own claim."""
        self._let_go = True
        if self.pins == 0:
            self.disk.close(self.fd)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes; fewer only at the end of the file."""
        data = self.disk.pread(self.fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes and (data := self.disk.pread(self.fd, size_bytes - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)


class FileRange:
    """Bytes of a segment to send: `size_bytes` from `position` of the file. Release it once, when sent."""

    __slots__ = ("_released", "handle", "position", "size_bytes")

    def __init__(self, handle: OpenFile, position: int, size_bytes: int) -> None:
        handle.pins += 1
        #: Stays open until `release`, even if the segment is deleted.
        self.handle = handle
        self.position = position
        self.size_bytes = size_bytes
        self._released = False

    def release(self) -> None:
        """Event loop only. A second call does no harm: a connection may fail while its last range is being sent."""
        if not self._released:
            self._released = True
            handle = self.handle
            if handle.pins > 1:
                handle.pins -= 1
            else:
                handle.unpin()

    def read(self) -> bytes:
        """Return the bytes, for TLS, for tools and for tests. Any thread, before `release`."""
        return self.handle.read(self.position, self.size_bytes)

    # The methods below take a position in the file: the sender has sent a part already.

    def read_now(self, buffer: WritableBuffer) -> int:
        """Read the beginning of the range, as far as it is in memory; `OSError` if the system cannot tell."""
        handle = self.handle
        if self.position + len(buffer) > handle.cut_at:
            raise self._cut()
        return handle.disk.read_now(handle.fd, buffer, self.position)

    def _cut(self) -> OSError:
        """The response promises bytes that are gone. The bytes in their place could pass a follower's checks, but belong
        elsewhere."""
        return OSError(f"{self.handle.path} was cut at {self.handle.cut_at} while a part of it was being sent")

    def is_resident(self, position: int, size_bytes: int) -> bool:
        """Whether sending this will not wait for the disk."""
        handle = self.handle
        return handle.disk.is_resident(handle.fd, position, size_bytes)

    def load(self, position: int, size_bytes: int) -> None:
        """Load these bytes into memory. Any thread; blocks."""
        self.handle.disk.load(self.handle.fd, position, size_bytes)

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Return the bytes; fewer at the end of the file or after a signal. Any thread. `OSError` if the file was truncated
        there."""
        handle = self.handle
        data = handle.disk.pread(handle.fd, size_bytes, position)
        if position + size_bytes > handle.cut_at:  # after the read: the loop may truncate while a thread reads
            raise self._cut()
        return data

    def send_to(self, sock: "socket.socket", position: int, size_bytes: int) -> int:
        """Send bytes; return how many the socket took. `OSError` if the file was truncated there."""
        handle = self.handle
        if position + size_bytes > handle.cut_at:
            raise self._cut()
        return handle.disk.sendfile(sock, handle.fd, position, size_bytes)

    def __repr__(self) -> str:
        return f"FileRange(fd={self.handle.fd}, position={self.position}, size_bytes={self.size_bytes})"


class HoldsFiles(Protocol):
    """A segment, as the pool sees it."""

    @property
    def is_pinned(self) -> bool: ...

    def release_files(self) -> None: ...


class SegmentPool:
    """The inactive segments with open files, the least recently used first. At most `max_open`, plus pinned ones.

    A segment holds up to three descriptors: its log and the maps of its two indexes.
    """

    __slots__ = ("_open", "repair")

    def __init__(self, max_open: int = 1000) -> None:
        #: Rebuilds damaged indexes of an inactive segment on a thread, (segment, reason); None: the segment rebuilds them
        #: itself.
        self.repair: Callable[[Segment, str], None] | None = None
        self._open: Recent[HoldsFiles, bool] = Recent(max_open, may_drop=lambda segment, _: not segment.is_pinned)

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: HoldsFiles) -> None:
        """`segment` is about to be used."""
        if not self._open.use(segment):
            for victim, _ in self._open.put(segment, True):
                victim.release_files()

    def forget(self, segment: HoldsFiles) -> None:
        """`segment` has become active, or was closed."""
        self._open.pop(segment)

"""Open files, shared between those who read them and those who delete them.

Owner: the event loop. A `FileRange` pins its file: the descriptor stays open, and its bytes readable, until `release`,
even when the segment is renamed, deleted or closed meanwhile. The `SegmentPool` bounds how many inactive segments
keep files open, so that thousands of partitions fit in the process's descriptors.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.base.errors import BrokenInvariant
from barnabas.base.host.disk import Disk, WritableBuffer

if TYPE_CHECKING:
    import socket

    from barnabas.broker.storage.segment import Segment


#: Further than any file goes.
NEVER_CUT: Final = 1 << 63


class OpenFile:
    """A descriptor and how many still need it. Closed when the segment has released it and no pin is left."""

    __slots__ = ("_let_go", "cut_at", "disk", "fd", "path", "pins")

    def __init__(self, disk: Disk, fd: int, path: str) -> None:
        self.disk = disk
        self.fd = fd
        #: Where it was when it was opened, for messages.
        self.path = path
        self.pins = 0
        #: What is at or above is not what it was: the segment was cut there, and may have been written over.
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
        """The segment's own claim ends."""
        self._let_go = True
        if self.pins == 0:
            self.disk.close(self.fd)

    def read(self, position: int, size_bytes: int) -> bytes:
        """`size_bytes` bytes: fewer only at the end of the file."""
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
        #: Its descriptor stays open until `release`, whatever becomes of the segment.
        self.handle = handle
        self.position = position
        self.size_bytes = size_bytes
        self._released = False

    def release(self) -> None:
        """Event loop only. Twice does no harm: a connection may fail while its last range is being sent."""
        if not self._released:
            self._released = True
            self.handle.unpin()

    def read(self) -> bytes:
        """The bytes themselves, for TLS, for tools and for tests. Any thread, before `release`."""
        return self.handle.read(self.position, self.size_bytes)

    # What follows takes its own place in the file: a sender has sent a part already.

    def read_now(self, buffer: WritableBuffer) -> int:
        """Its beginning, as far as that is in memory; `OSError` where that cannot be told."""
        handle = self.handle
        if self.position + len(buffer) > handle.cut_at:
            raise self._cut()
        return handle.disk.read_now(handle.fd, buffer, self.position)

    def _cut(self) -> OSError:
        """The answer promises bytes that are gone. What is in their place could fit on a follower's log, which it is not of."""
        return OSError(f"{self.handle.path} was cut at {self.handle.cut_at} while a part of it was being sent")

    def is_resident(self, position: int, size_bytes: int) -> bool:
        """Whether sending this will not wait for the disk."""
        handle = self.handle
        return handle.disk.is_resident(handle.fd, position, size_bytes)

    def load(self, position: int, size_bytes: int) -> None:
        """Make it resident. Any thread; blocks."""
        self.handle.disk.load(self.handle.fd, position, size_bytes)

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Fewer bytes at the end of the file, and where a signal came. Any thread. `OSError` where the file was cut."""
        handle = self.handle
        data = handle.disk.pread(handle.fd, size_bytes, position)
        if position + size_bytes > handle.cut_at:  # after the read: the loop may cut while a thread reads
            raise self._cut()
        return data

    def send_to(self, sock: "socket.socket", position: int, size_bytes: int) -> int:
        """The number of bytes that the socket took. `OSError` where the file was cut."""
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
    """The inactive segments that have files open, the longest unused first. At most `max_open` of them, but for pins.

    A segment holds up to three descriptors: its log and the maps of its two indexes.
    """

    __slots__ = ("_open", "max_open", "repair")

    def __init__(self, max_open: int = 1000) -> None:
        self.max_open = max_open
        #: Rebuilds damaged indexes of an inactive segment on a thread, (segment, why); None: the segment does it itself.
        self.repair: Callable[[Segment, str], None] | None = None
        self._open: OrderedDict[HoldsFiles, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: HoldsFiles) -> None:
        """`segment` is about to be used."""
        held = self._open
        if segment in held:
            held.move_to_end(segment)
            return
        held[segment] = None
        if len(held) > self.max_open:
            self._evict(keep=segment)

    def forget(self, segment: HoldsFiles) -> None:
        """`segment` has become active, or was closed."""
        self._open.pop(segment, None)

    def _evict(self, keep: HoldsFiles) -> None:
        victim = next((s for s in self._open if s is not keep and not s.is_pinned), None)
        if victim is not None:
            del self._open[victim]
            victim.release_files()

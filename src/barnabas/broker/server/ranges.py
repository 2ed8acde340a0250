"""The parts of a response: bytes, and pieces of files that go to the socket without being read."""

import socket
from collections.abc import Iterable, Sequence
from typing import Protocol


class Pinned(Protocol):
    def release(self) -> None: ...


class FileRange(Pinned, Protocol):
    """A piece of a file, pinned: the descriptor stays open until `release`, even if the file is deleted meanwhile."""

    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def read_now(self, buffer: memoryview) -> int: ...
    def is_resident(self, position: int, size_bytes: int) -> bool: ...
    def load(self, position: int, size_bytes: int) -> None: ...
    def read_at(self, position: int, size_bytes: int) -> bytes: ...
    def send_to(self, sock: socket.socket, position: int, size_bytes: int) -> int: ...


Part = bytes | bytearray | memoryview | FileRange
BYTES = (bytes, bytearray, memoryview)


def release(parts: Iterable[Part | Pinned]) -> None:
    """Release the ranges among the parts: they have been sent, or will not be."""
    for part in parts:
        if not isinstance(part, BYTES):
            part.release()


def read_small(parts: Sequence[Part], bytes_max: int) -> bytearray | None:
    """Return all parts in one piece; None if that exceeds `bytes_max`, or if reading would wait for the disk."""
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
                if part.read_now(view[at:end]) < part.size_bytes:
                    return None
            except OSError:
                # Not in memory, or the file system cannot tell.
                return None
        at = end
    return whole

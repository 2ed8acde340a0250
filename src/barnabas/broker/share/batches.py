"""The batches of a read, as far as a member gets records of them. Owner: the event loop, which must not wait for the disk.

Only headers are read, in steps, and only while the member still gets records. So a member that asks for ten records of a
partition with a million costs a few reads, and its response has the batches of those records alone.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.base.errors import Malformed
from barnabas.broker.share.records import Acquired
from barnabas.broker.storage.file_handle import FileRange
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, check_length, read_header

#: Bytes that are read at a time to find the headers of batches.
STEP_BYTES: Final = 64 * 1024
#: Bytes that are loaded from the disk before the first of these reads. Later batches wait for the next request.
LOAD_BYTES: Final = 1024 * 1024


class _Seen(NamedTuple):
    part: FileRange
    position: int
    header: BatchHeader


class ReadBatches:
    """The batches in the file ranges of one read. It does not release the ranges."""

    def __init__(self, parts: Sequence[FileRange]) -> None:
        self._parts = parts
        self._seen: list[_Seen] = []

    @property
    def is_cold(self) -> bool:
        """Whether `load` must be called before `headers`."""
        return bool(self._parts) and not self._parts[0].is_resident(
            self._parts[0].position, min(self._parts[0].size_bytes, STEP_BYTES)
        )

    def load(self) -> None:
        """Load the first batches into memory. Any thread; blocks."""
        part = self._parts[0]
        part.load(part.position, min(part.size_bytes, LOAD_BYTES))

    def headers(self) -> Iterator[BatchHeader]:
        """Yield the headers in the order of the log; stop at bytes that are not in memory. `OSError` if the disk fails."""
        for part in self._parts:
            position, end = part.position, part.position + part.size_bytes
            while position < end:
                size = min(STEP_BYTES, end - position)
                if self._seen and not part.is_resident(position, size):
                    return
                chunk = part.read_at(position, size)
                at = 0
                while len(chunk) - at >= HEADER_SIZE:
                    header = read_header(chunk, at)
                    check_length(header, at, end - position)
                    self._seen.append(_Seen(part, position + at, header))
                    yield header
                    at += header.size_bytes
                if at == 0:
                    raise Malformed(f"{part.handle.path}: torn batch header at position {position}")
                position += at

    def of(self, acquired: Sequence[Acquired]) -> list[FileRange]:
        """Return new ranges with the batches from the first acquired record to the last. Release them."""
        if not acquired:
            return []
        first, last = acquired[0].first, acquired[-1].last
        found: list[FileRange] = []
        for part in self._parts:
            of_part = [
                seen
                for seen in self._seen
                if seen.part is part and seen.header.last_offset >= first and seen.header.base_offset <= last
            ]
            if of_part:
                begin, final = of_part[0].position, of_part[-1]
                found.append(FileRange(part.handle, begin, final.position + final.header.size_bytes - begin))
        return found

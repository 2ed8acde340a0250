"""Reads segments in large pieces of whole batches, at the allowed rate. Owner: the worker."""

import time
from collections.abc import Callable
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import Disk
from barnabas.wire.record_batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, MIN_BATCH_LENGTH

unpack_header: Final = HEADER.unpack_from
#: Smaller buffers would spend most time in system calls.
IO_BUFFER_BYTES_MIN: Final = HEADER_SIZE

#: Takes a piece of a file that begins with a batch; returns the bytes of the whole batches that it has processed.
Consumer = Callable[[bytes], int]


class ReadThrottle:
    """Keeps reads and writes together below `log.cleaner.io.max.bytes.per.second`."""

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._now_s = now_s
        self._sleep_s = sleep_s
        self._free_s = now_s()

    def spent(self, size_bytes: int) -> None:
        if self._rate is None:
            return
        now = self._now_s()
        # Unused time is not saved up for a burst.
        self._free_s = max(self._free_s, now) + size_bytes / self._rate
        if self._free_s > now:
            self._sleep_s(self._free_s - now)


class SegmentReader:
    """The log file of one segment, open within `with`."""

    def __init__(self, disk: Disk, path: str, size_bytes: int, *, buffer_bytes: int, throttle: ReadThrottle) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._disk = disk
        self._buffer_bytes = max(buffer_bytes, IO_BUFFER_BYTES_MIN)
        self._throttle = throttle

    def __enter__(self) -> "SegmentReader":
        self._fd = self._disk.open(self.path)
        return self

    def __exit__(self, *exc: object) -> None:
        self._disk.close(self._fd)

    def feed(self, consumer: Consumer, start: int = 0, stop: int | None = None) -> int:
        """Pass [start, stop) to `consumer`, piece by piece, until it takes nothing more; return where it stopped.

        The pass ends if the consumer takes nothing of a piece that holds a whole batch. `Malformed` if the bytes are not
        batches.
        """
        limit = self.size_bytes if stop is None else stop
        position = start
        while position < limit:
            piece = self._read(position, min(self._buffer_bytes, limit - position))
            needed = self._first_batch_bytes(piece, position, limit)
            if needed > len(piece):
                piece = self._read(position, needed)
            self._throttle.spent(len(piece))
            try:
                used = consumer(piece)
            except Malformed as error:
                raise Malformed(f"{self.path}, at or after position {position}: {error}") from None
            if used == 0:
                break
            position += used
        return position

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that reaches `offset`; the end of the file if there is none."""

        def skip(piece: bytes) -> int:
            at = 0
            while len(piece) - at >= HEADER_SIZE:
                header = unpack_header(piece, at)
                check_batch(header)
                if header[0] + header[6] >= offset or at + header[1] + LOG_OVERHEAD > len(piece):
                    break
                at += header[1] + LOG_OVERHEAD
            return at

        return self.feed(skip)

    def _read(self, position: int, size_bytes: int) -> bytes:
        piece = self._disk.pread(self._fd, size_bytes, position)
        while len(piece) < size_bytes:
            more = self._disk.pread(self._fd, size_bytes - len(piece), position + len(piece))
            if not more:
                raise Malformed(f"{self.path} ends at {position + len(piece)}, before its size of {self.size_bytes}")
            piece += more
        return piece

    def _first_batch_bytes(self, piece: bytes, position: int, limit: int) -> int:
        if len(piece) < HEADER_SIZE:
            if limit - position < HEADER_SIZE:
                raise Malformed(f"{self.path}: torn batch at position {position}")
            return HEADER_SIZE
        header = unpack_header(piece)
        if header[3] != MAGIC_V2 or header[1] < MIN_BATCH_LENGTH or position + LOG_OVERHEAD + header[1] > limit:
            raise Malformed(
                f"{self.path}: no batch at position {position}: magic {header[3]}, length {header[1]}, "
                f"{limit - position} bytes left"
            )
        return int(header[1]) + LOG_OVERHEAD


def check_batch(header: tuple[int, ...]) -> None:
    """Check what holds for any batch; the reader has checked the first of each piece."""
    if header[3] != MAGIC_V2 or header[1] < MIN_BATCH_LENGTH or header[6] < 0 or header[12] < 0:
        raise Malformed(
            f"no batch: magic {header[3]}, length {header[1]}, last offset delta {header[6]}, {header[12]} records"
        )

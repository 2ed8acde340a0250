"""The limits of the machine, measured in the same run: memory, loopback, disk, and the start of a process."""

import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_PIECE_BYTES = 1 << 20
_TOTAL_BYTES = 1 << 30


@dataclass(frozen=True)
class Limit:
    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value:,.4g} {self.unit}"


def machine_limits() -> list[Limit]:
    """Measure memory copy, loopback TCP, a flushed write, and calls of the interpreter. Takes about three seconds."""
    return [memory_copy(), loopback(), fsync(), python_calls()]


def memory_copy() -> Limit:
    """Copy pieces that no cache can hold."""
    source, target = bytearray(os.urandom(64)) * (_PIECE_BYTES // 2), bytearray(32 * _PIECE_BYTES)
    # Use views: assigning to a bytearray copies twice.
    from_, to = memoryview(source), memoryview(target)
    to[:] = from_  # the first touch of a page costs more than the copy
    began_s = time.monotonic()
    for _ in range(_TOTAL_BYTES // len(source)):
        to[:] = from_
    return Limit("memory copy", _TOTAL_BYTES / 1e6 / (time.monotonic() - began_s), "MB/s")


def loopback() -> Limit:
    """One connection, with sender and receiver in one process: neither reads the bytes, and both leave the work to the
    kernel."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(),))
        sender.start()
        accepted, _ = server.accept()
        with accepted:
            buffer = bytearray(_PIECE_BYTES)
            began_s, left = time.monotonic(), _TOTAL_BYTES
            while left:
                left -= accepted.recv_into(buffer)
            took_s = time.monotonic() - began_s
        sender.join()
    return Limit("loopback TCP", _TOTAL_BYTES / 1e6 / took_s, "MB/s")


def _send(address: tuple[str, int]) -> None:
    piece = bytes(_PIECE_BYTES)
    with socket.create_connection(address) as sock:
        for _ in range(_TOTAL_BYTES // len(piece)):
            sock.sendall(piece)


def fsync() -> Limit:
    """Append and flush 4 KB; return the median of 50."""
    took_s = []
    with tempfile.TemporaryFile(dir=tempfile.gettempdir(), buffering=0) as file:
        for _ in range(50):
            began_s = time.monotonic()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            took_s.append(time.monotonic() - began_s)
    return Limit("write and fsync of 4 KB", statistics.median(took_s) * 1000, "ms")


def file_read(path: Path) -> Limit:
    """Read a file that was just read, so that most of it is in memory, in pieces of 1 MB."""
    buffer, got = bytearray(_PIECE_BYTES), 0
    for attempt in range(2):
        began_s = time.monotonic()
        got = 0
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                got += size
        took_s = time.monotonic() - began_s
        if attempt:
            break
    return Limit("read of a file in memory", got / 1e6 / took_s, "MB/s")


def python_start() -> Limit:
    """Start an interpreter that does nothing, from exec to exit."""
    took_s = []
    for _ in range(5):
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        took_s.append(time.monotonic() - began_s)
    return Limit("start of Python", statistics.median(took_s), "s")


class _Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int, *, times: int = 1) -> int:
        self.value += amount * times
        return self.value


def python_calls() -> Limit:
    """Call a method, to measure the interpreter. One that was built without profile-guided optimization, as pyenv does by
    default, needs a sixth more CPU than Debian's."""
    counter, calls = _Counter(), 200_000
    took_s = []
    for _ in range(5):
        began_s = time.process_time()
        for number in range(calls):
            counter.add(number, times=2)
        took_s.append(time.process_time() - began_s)
    return Limit(f"Python {platform.python_version()}", calls / min(took_s) / 1e6, "million calls/s")

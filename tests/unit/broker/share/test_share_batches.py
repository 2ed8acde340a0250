"""The batches that a share fetch reads: in steps, not from the disk, and only as far as the member gets records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import Disk
from barnabas.broker.share.batches import STEP_BYTES, ReadBatches
from barnabas.broker.share.records import Acquired
from barnabas.broker.storage.file_handle import FileRange, OpenFile
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_build import BatchBuilder


class ColdDisk(Disk):
    """Has in memory only what `load` has read."""

    def __init__(self) -> None:
        self.loaded_to = 0
        self.read_bytes = 0

    def is_resident(self, fd: int, position: int, size_bytes: int) -> bool:
        return position + size_bytes <= self.loaded_to

    def load(self, fd: int, position: int, size_bytes: int) -> None:
        self.loaded_to = position + size_bytes

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self.read_bytes += size_bytes
        return super().pread(fd, size_bytes, position)


def batches(count: int, value: bytes) -> bytes:
    """Return batches of two records each."""
    data = b""
    for number in range(count):
        builder = BatchBuilder(base_offset=2 * number)
        builder.append(None, value, timestamp=0)
        builder.append(None, value, timestamp=0)
        data += builder.build()
    return data


@pytest.fixture
def disk() -> ColdDisk:
    return ColdDisk()


def part_of(path: Path, data: bytes, disk: ColdDisk, position: int = 0) -> FileRange:
    path.write_bytes(data)
    handle = OpenFile(disk, disk.open(str(path)), str(path))
    return FileRange(handle, position, len(data) - position)


def offsets(headers: Iterator[object]) -> list[int]:
    return [header.base_offset for header in headers]  # type: ignore[attr-defined]


def test_headers_are_read_up_to_the_first_bytes_that_are_not_in_memory(tmp_path: Path, disk: ColdDisk) -> None:
    data = batches(400, b"v" * 1_000)
    found = ReadBatches([part_of(tmp_path / "log", data, disk)])
    assert found.is_cold
    disk.loaded_to = 3 * STEP_BYTES
    assert not found.is_cold
    read = offsets(found.headers())
    assert read == list(range(0, 2 * len(read), 2))
    assert 2 * STEP_BYTES // 2_100 < len(read) <= 3 * STEP_BYTES // 2_000
    found.load()
    assert len(offsets(ReadBatches([part_of(tmp_path / "log", data, disk)]).headers())) == 400


def test_only_steps_that_are_needed_are_read(tmp_path: Path, disk: ColdDisk) -> None:
    data = batches(1_000, b"v" * 1_000)
    disk.loaded_to = len(data)
    found = ReadBatches([part_of(tmp_path / "log", data, disk)])
    headers = found.headers()
    assert [next(headers).base_offset for _ in range(5)] == [0, 2, 4, 6, 8]
    assert disk.read_bytes == STEP_BYTES
    [part] = found.of([Acquired(3, 3, 1), Acquired(5, 6, 1)])
    assert [header.base_offset for _, header in iter_batches(part.read())] == [2, 4, 6]
    assert found.of([]) == []


def test_batches_larger_than_a_step_are_skipped_over(tmp_path: Path, disk: ColdDisk) -> None:
    data = batches(5, b"v" * STEP_BYTES)
    disk.loaded_to = len(data)
    found = ReadBatches([part_of(tmp_path / "log", data, disk)])
    assert offsets(found.headers()) == [0, 2, 4, 6, 8]
    [part] = found.of([Acquired(4, 4, 1)])
    assert [header.base_offset for _, header in iter_batches(part.read())] == [4]


def test_bytes_that_are_not_a_batch_are_an_error(tmp_path: Path, disk: ColdDisk) -> None:
    disk.loaded_to = 1_000
    with pytest.raises(Malformed):
        offsets(ReadBatches([part_of(tmp_path / "log", b"x" * 100, disk)]).headers())

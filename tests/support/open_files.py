"""A fixture for tests that abandon logs, segments and log directories. None of these closes its files by being garbage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from barnabas.base.host.disk import Disk


@pytest.fixture(autouse=True)
def closed_behind_each_test() -> Iterator[None]:
    with closed_at_the_end():
        yield


@contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Close every file that a `Disk` has opened meanwhile."""
    open_file, close = Disk.open, Disk.close
    #: Device and inode, by descriptor: a number may have become the descriptor of another file.
    opened: dict[int, tuple[int, int]] = {}

    def opened_by(disk: Disk, path: str, *arguments: object, **options: object) -> int:
        fd = open_file(disk, path, *arguments, **options)  # type: ignore[arg-type]
        opened[fd] = _file_of(fd)
        return fd

    def closed_by(disk: Disk, fd: int) -> None:
        opened.pop(fd, None)
        close(disk, fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "open", opened_by)
        patch.setattr(Disk, "close", closed_by)
        yield
    for fd, file in opened.items():
        with suppress(OSError):
            if _file_of(fd) == file:
                os.close(fd)


def _file_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino

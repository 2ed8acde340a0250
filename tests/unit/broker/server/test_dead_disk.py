"""A disk on which a killed broker, which shares the test's process, still closes its files."""

from pathlib import Path

from barnabas.base.host.disk import Disk
from barnabas.broker.runtime.faults import Faults
from barnabas.broker.server.fault_injection import FaultyDisk


def test_nothing_reaches_the_disk_of_a_dead_broker(tmp_path: Path) -> None:
    faults = Faults()
    disk = FaultyDisk(faults)
    present, folder = str(tmp_path / "present"), str(tmp_path / "folder")
    disk.replace_file(present, b"before")
    disk.mkdir(folder)
    fd = disk.open(present)
    modified_ns = disk.modified_ns(present)
    faults.is_dead = True

    assert disk.pwrite(fd, b"after!", 0) == 6
    disk.truncate(fd, 1)
    disk.reserve(fd, 0, 100)
    disk.fsync(fd)
    disk.fdatasync(fd)
    disk.replace_file(present, b"after")
    disk.replace_file(str(tmp_path / "made"), b"after")
    disk.rename(present, str(tmp_path / "moved"))
    disk.unlink(present)
    disk.rmdir(folder)
    disk.rmtree(folder)
    disk.mkdir(str(tmp_path / "new"))
    disk.makedirs(str(tmp_path / "new" / "er"))
    disk.set_modified_ns(present, 0)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "present"]
    assert disk.pread(fd, 100, 0) == b"before"
    assert Disk().modified_ns(present) == modified_ns
    disk.close(fd)


def test_disk_of_a_broker_that_lives_writes(tmp_path: Path) -> None:
    disk = FaultyDisk(Faults())
    disk.replace_file(str(tmp_path / "a"), b"x")
    disk.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert disk.read_file(str(tmp_path / "b")) == b"x"
    assert disk.unlink(str(tmp_path / "b"))
    assert not disk.unlink(str(tmp_path / "b"))

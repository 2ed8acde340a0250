"""Log directories on real small file systems that run out of space under real brokers and clients."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from barnabas.cli.main import app
from barnabas.testing import Cluster, wait_until
from tests.support.command_line import CliRunner

SIZE_BYTES = 24 << 20
VALUE = b"x" * 20_000
pytestmark = pytest.mark.timeout(600)


class Small:
    """A file system of its own that a ballast file can fill up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"

    def leave_bytes(self, free_bytes: int) -> None:
        found = os.statvfs(self.folder)
        taken = found.f_bavail * found.f_frsize - free_bytes
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, taken)

    def make_room(self) -> None:
        self.ballast.unlink()


def mount(kind: str, tmp_path: Path) -> list[str]:
    folder = tmp_path / "small"
    folder.mkdir()
    if kind == "tmpfs":
        return ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, timeout=60)
    return ["mount", "-o", "loop", str(image), str(folder)]


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Small]:
    try:
        done = subprocess.run(mount(request.param, tmp_path), capture_output=True, text=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot make a file system: {error}")
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
    try:
        yield Small(tmp_path / "small")
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=False, timeout=60)


@pytest.fixture
def cluster(small: Small, tmp_path: Path) -> Iterator[Cluster]:
    """Broker 1 has the small directory and an ordinary one; broker 2 has enough space."""
    (tmp_path / "large").mkdir()
    dirs = {1: {"log.dirs": f"{small.folder},{tmp_path / 'large'}"}}
    config = {"min.insync.replicas": 1, "log.segment.bytes": 1 << 20, "log.cleaner.backoff.ms": 200}
    with Cluster(brokers=2, broker_config=dirs, config=config) as made:
        yield made


def dirs_of(small: Small) -> set[str]:
    return {each.name for each in small.folder.iterdir() if each.is_dir() and each.name != "lost+found"}


def produce(cluster: Cluster, topic: str, partition: int, count: int, first: int = 0) -> list[int]:
    """Return the numbers of the records that were acknowledged with acks=all."""
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 120_000, "log_level": 0}
    producer = Producer(settings | {"retry.backoff.ms": 50, "enable.idempotence": True})
    acknowledged: list[int] = []

    def heard(number: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _: acknowledged.append(number) if error is None else None

    for number in range(first, first + count):
        producer.produce(topic, VALUE, key=b"%d" % number, partition=partition, on_delivery=heard(number))
        producer.poll(0)
    assert producer.flush(180) == 0
    return acknowledged


def doctor(cluster: Cluster) -> str:
    return CliRunner().invoke(app, ["doctor", "--bootstrap-server", cluster.bootstrap]).stdout


def offline_dirs(cluster: Cluster) -> bool:
    return (
        "log-dir-offline"
        in CliRunner().invoke(app, ["doctor", "--bootstrap-server", cluster.bootstrap, "--json"]).stdout
    )


def test_full_directory_goes_offline_and_its_records_survive(cluster: Cluster, small: Small) -> None:
    cluster.create_topic("t", partitions=4, replication_factor=2)
    cluster.wait_for_isr("t", 2)
    inside = sorted(int(name.removeprefix("t-")) for name in dirs_of(small) if name.startswith("t-"))
    [outside, *_] = sorted(set(range(4)) - set(inside))
    full = inside[0]
    before = produce(cluster, "t", full, 20)
    assert "disk" in doctor(cluster) and "left" in doctor(cluster)  # doctor warns below 1 GiB

    small.leave_bytes(1 << 20)
    acknowledged = before + produce(cluster, "t", full, 200, first=20)
    assert len(acknowledged) == 220, "the other replica took over, and producers noticed nothing"
    wait_until(lambda: offline_dirs(cluster), 60, what="the directory to be offline")
    assert cluster.leader_of("t", full) == 2
    # Broker 1 continues with its other directory.
    wait_until(lambda: 1 in cluster.partitions("t")[outside].isr, 60, what="the other directory in the ISR")
    assert len(produce(cluster, "t", outside, 20)) == 20

    small.make_room()
    cluster.restart(1)
    cluster.wait_for_isr("t", 2)
    assert not offline_dirs(cluster)
    cluster.kill(2)  # broker 1 has all records
    wait_until(lambda: cluster.leader_of("t", full) == 1, 60, what="broker 1 to lead")
    keys = {int(each.key or b"-1") for each in cluster.records("t", partition=full)}
    assert keys == set(range(220))


def test_compaction_that_finds_the_disk_full_loses_nothing(cluster: Cluster, small: Small) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    settings["min.compaction.lag.ms"] = "3600000"
    cluster.create_topic("c", partitions=8, replication_factor=1, config=settings)
    mine = [int(name.removeprefix("c-")) for name in dirs_of(small) if name.startswith("c-")]
    assert mine, "each directory gets its share"
    acknowledged = produce(cluster, "c", mine[0], 150)
    assert len(acknowledged) == 150
    # Every key is different, so a cleaned segment is as large as the original: there is no space for it.
    small.leave_bytes(100_000)
    alter = [
        "configs",
        "--bootstrap-server",
        cluster.bootstrap,
        "--alter",
        "--entity-type",
        "topics",
        "--entity-name",
        "c",
    ]
    ran = CliRunner().invoke(app, [*alter, "--add-config", "min.compaction.lag.ms=0"])
    assert ran.exit_code == 0, ran.output
    wait_until(lambda: offline_dirs(cluster), 120, what="the directory to be offline")
    small.make_room()
    cluster.restart(1)
    cluster.wait_until_led("c")
    keys = {int(each.key or b"-1") for each in cluster.records("c", partition=mine[0])}
    assert keys == set(range(150))

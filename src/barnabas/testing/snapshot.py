"""Snapshots of a cluster: everything that it has on disk at one moment, to be restored later.

Taking one stops every process (SIGSTOP), copies the log directories and ZooKeeper's, and resumes the processes. The copy is
what
a power cut of all machines would leave: everything acknowledged is in it, but state in memory (connections, members of groups,
open fetch sessions) is not. Restoring kills the processes, puts the copies in place, ends the sessions that ZooKeeper
remembers,
and starts the processes on their ports.

Files are copied without their holes, because indexes consist mostly of holes: that leaves some kilobytes per partition.
"""

import errno
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.cli.fork_server import Member
from barnabas.cli.local_cluster import ZOOKEEPER, ClusterFailed, wait_until

if TYPE_CHECKING:
    from barnabas.testing.cluster import Cluster

_FOLDER = "snapshots"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Created by `Cluster.snapshot`; valid as long as the cluster's folder exists."""

    folder: Path
    #: The original place of each folder.
    places: dict[str, Path]


def take(cluster: "Cluster") -> Snapshot:
    members = _members(cluster)
    if cluster.zookeeper is not None:
        raise ClusterFailed("a snapshot needs the embedded ZooKeeper: this cluster uses another one")
    for member in members:
        if not member.running or member.paused:
            raise ClusterFailed(
                f"{member.name} does not run: a snapshot takes a whole cluster; repair() starts all of it"
            )
    number = len(list((cluster.folder / _FOLDER).glob("*")))
    snapshot = Snapshot(cluster.folder / _FOLDER / str(number), _places(cluster))
    snapshot.folder.mkdir(parents=True, mode=0o700)
    for member in members:
        os.kill(member.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(_is_stopped(member.pid) for member in members), what="that all processes stand still")
        for name, place in snapshot.places.items():
            _copy_folder(place, snapshot.folder / name)
    finally:
        for member in members:
            os.kill(member.pid, signal.SIGCONT)
    return snapshot


def restore(cluster: "Cluster", snapshot: Snapshot) -> None:
    if cluster.folder not in snapshot.folder.parents:
        raise ClusterFailed("this snapshot is of another cluster")
    address = cluster.zookeeper_connect
    cluster.kill_all()
    for name, place in snapshot.places.items():
        shutil.rmtree(place, ignore_errors=True)
        _copy_folder(snapshot.folder / name, place)
    cluster.start_all(zookeeper_port=address.rpartition(":")[2])


def _members(cluster: "Cluster") -> list[Member]:
    # Brokers first: messages between them and ZooKeeper are then lost, as in a power cut.
    return [*(cluster.member(each) for each in cluster.broker_ids), *cluster.zookeeper_members]


def _places(cluster: "Cluster") -> dict[str, Path]:
    places = {ZOOKEEPER: cluster.folder / ZOOKEEPER}
    for broker_id in cluster.broker_ids:
        for number, directory in enumerate(cluster.log_dirs(broker_id)):
            places[f"broker-{broker_id}-{number}"] = directory
    return places


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in ("T", "t")


def _copy_folder(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                _copy_folder(source / entry.name, target / entry.name)
            else:
                _copy_file(entry.path, str(target / entry.name))
    shutil.copystat(source, target)


def _copy_file(source: str, target: str) -> None:
    begins, ends = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size = os.fstat(begins).st_size
        os.ftruncate(ends, size)
        at = 0
        while at < size:
            try:
                at = os.lseek(begins, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # the rest of the file is a hole
                raise
            end = os.lseek(begins, at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(begins, ends, end - at, at, at)
    finally:
        os.close(begins)
        os.close(ends)
    shutil.copystat(source, target)

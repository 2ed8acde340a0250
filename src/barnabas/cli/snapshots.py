"""Snapshots of a local cluster: everything that it has on disk at one moment, under a name.

Saving stops every process (SIGSTOP) for the time of the copy. A snapshot is what a power cut of all machines would leave: it
has everything that was acknowledged. It does not have state that brokers only have in memory: connections, members of groups,
open fetch sessions. Restoring kills the processes, puts the copies in place and starts the processes on their ports.

A file is cloned where the file system can do that (Btrfs, XFS), and copied without its holes elsewhere.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from barnabas.base.host import kernel
from barnabas.cli.fork_server import Member
from barnabas.cli.local_cluster import BROKER, ZOOKEEPER, ClusterFailed, LocalCluster, wait_until

#: The folder of snapshots, in the cluster's folder.
FOLDER: Final = "snapshots"
_ABOUT: Final = "snapshot.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: linux/fs.h: share the blocks of another file until one of the two is written to.


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSnapshot:
    name: str
    saved_s: float
    brokers: int
    size_bytes: int
    #: How long the processes were stopped.
    still_s: float


def save(cluster: LocalCluster, name: str) -> SavedSnapshot:
    """:raises ClusterFailed: if a process is down, the name is taken, or a snapshot would not hold what it promises."""
    folder = _folder(cluster, name)
    if folder.exists():
        raise ClusterFailed(f"there is a snapshot {name!r} already: delete it, or choose another name")
    _refuse_data_elsewhere(cluster)
    # A save that is cut off leaves a folder that `saved` does not list, and that the next save replaces.
    unfinished = folder.with_name(f"{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, mode=0o700)
    began_s = time.monotonic()
    with standing_still(state_members(cluster)):
        copy_out(places(cluster), unfinished)
    still_s = time.monotonic() - began_s
    size_bytes = sum(path.stat().st_blocks * 512 for path in unfinished.rglob("*"))
    snapshot = SavedSnapshot(
        name=name, saved_s=time.time(), brokers=cluster.brokers, size_bytes=size_bytes, still_s=still_s
    )
    (unfinished / _ABOUT).write_text(json.dumps(asdict(snapshot)))
    unfinished.rename(folder)
    return snapshot


def saved(cluster: LocalCluster) -> list[SavedSnapshot]:
    """Return the snapshots, the oldest first."""
    found = []
    for about in (cluster.folder / FOLDER).glob(f"*/{_ABOUT}"):
        with contextlib.suppress(ValueError, TypeError):  # another program's file
            found.append(SavedSnapshot(**json.loads(about.read_text())))
    return sorted((each for each in found if _NAME.fullmatch(each.name)), key=lambda each: each.saved_s)


def restore(cluster: LocalCluster, name: str) -> float:
    """Restore the cluster at the same addresses; return the seconds until every broker was ready."""
    folder = _existing(cluster, name)
    about = json.loads((folder / _ABOUT).read_text())
    if about["brokers"] != cluster.brokers:
        raise ClusterFailed(
            f"snapshot {name!r} is of {about['brokers']} brokers, and this cluster has {cluster.brokers}: "
            f"start it with --brokers {about['brokers']}"
        )
    began_s = time.monotonic()
    address = cluster.zookeeper_connect
    cluster.kill_all()
    put_back(folder, places(cluster))
    cluster.start_all(zookeeper_port=address.rpartition(":")[2])
    return time.monotonic() - began_s


def delete(cluster: LocalCluster, name: str) -> None:
    folder = _existing(cluster, name)
    # Delete the description first: without it the folder is no snapshot, even if the rest cannot be deleted.
    (folder / _ABOUT).unlink()
    shutil.rmtree(folder)


def _folder(cluster: LocalCluster, name: str) -> Path:
    if not _NAME.fullmatch(name) or name.endswith(".unfinished"):
        raise ClusterFailed(f"{name!r} cannot be a name: use letters, digits, dots, dashes and underscores")
    return cluster.folder / FOLDER / name


def _existing(cluster: LocalCluster, name: str) -> Path:
    folder = _folder(cluster, name)
    if not (folder / _ABOUT).exists():
        known = ", ".join(each.name for each in saved(cluster)) or "none"
        raise ClusterFailed(f"there is no snapshot {name!r}; there are: {known}")
    return folder


def _refuse_data_elsewhere(cluster: LocalCluster) -> None:
    """Refuse clusters with data outside their folder: after a restore it would be newer than the restored files."""
    if cluster.zookeeper is not None:
        raise ClusterFailed("a snapshot needs the embedded ZooKeeper: this cluster uses another one")
    for member in state_members(cluster):
        if not member.running or member.paused:
            raise ClusterFailed(f"{member.name} does not run: a snapshot takes a whole cluster")
    for broker_id in cluster.broker_ids:
        settings = cluster.settings_of(broker_id)
        if settings.get("remote.log.storage.system.enable", "false").lower() == "true":
            raise ClusterFailed(
                "a snapshot cannot hold tiered topics: their history is in the object store, which goes on without it"
            )
        if not all(directory.is_relative_to(cluster.folder) for directory in cluster.log_dirs(broker_id)):
            raise ClusterFailed(
                f"log.dirs of broker {broker_id} are not in {cluster.folder}: a snapshot would not have them"
            )


def refuse_links(links: Iterable[str]) -> None:
    if named := ", ".join(sorted(links)):
        raise ClusterFailed(
            f"a snapshot cannot hold mirrored topics: their source goes on without it (link {named}); delete the link first"
        )


def state_members(cluster: LocalCluster) -> list[Member]:
    """Return brokers before ZooKeeper: messages between them are lost during the stop, as in a power cut."""
    return [*cluster.members(BROKER), *cluster.members(ZOOKEEPER)]


class HasState(Protocol):
    """A cluster whose brokers and ZooKeeper keep their files in its folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def broker_ids(self) -> Iterable[int]: ...

    def log_dirs(self, broker_id: int) -> list[Path]: ...


def places(cluster: HasState) -> dict[str, Path]:
    """Return where each folder of a snapshot belongs."""
    found = {ZOOKEEPER: cluster.folder / ZOOKEEPER}
    for broker_id in cluster.broker_ids:
        for number, directory in enumerate(cluster.log_dirs(broker_id)):
            found[f"broker-{broker_id}-{number}"] = directory
    return found


@contextmanager
def standing_still(members: list[Member]) -> Iterator[None]:
    for member in members:
        os.kill(member.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(kernel.is_stopped(member.pid) for member in members), what="a stop of all processes")
        yield
    finally:
        for member in members:
            os.kill(member.pid, signal.SIGCONT)


def copy_out(places: Mapping[str, Path], snapshot: Path) -> None:
    for part, place in places.items():
        _copy_folder(place, snapshot / part)


def put_back(snapshot: Path, places: Mapping[str, Path]) -> None:
    for part, place in places.items():
        shutil.rmtree(place, ignore_errors=True)
        _copy_folder(snapshot / part, place)


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
        kernel.copy_data(begins, ends, os.fstat(begins).st_size)
    finally:
        os.close(begins)
        os.close(ends)
    shutil.copystat(source, target)

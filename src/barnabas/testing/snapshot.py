"""Snapshots of a test's cluster: everything that it has on disk, at one moment. `barnabas.cli.snapshots` says what is in them.

Restoring ends the sessions that ZooKeeper remembers, so that the brokers can register at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.cli.local_cluster import ClusterFailed
from barnabas.cli.snapshots import FOLDER, copy_out, places, put_back, standing_still, state_members

if TYPE_CHECKING:
    from barnabas.testing.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Created by `Cluster.snapshot`; valid as long as the cluster's folder exists."""

    folder: Path
    #: The original place of each folder.
    places: dict[str, Path]


def take(cluster: "Cluster") -> Snapshot:
    if cluster.zookeeper is not None:
        raise ClusterFailed("a snapshot needs the embedded ZooKeeper: this cluster uses another one")
    members = state_members(cluster)
    for member in members:
        if not member.running or member.paused:
            raise ClusterFailed(
                f"{member.name} does not run: a snapshot takes a whole cluster; repair() starts all of it"
            )
    number = len(list((cluster.folder / FOLDER).glob("*")))
    snapshot = Snapshot(cluster.folder / FOLDER / str(number), places(cluster))
    snapshot.folder.mkdir(parents=True, mode=0o700)
    with standing_still(members):
        copy_out(snapshot.places, snapshot.folder)
    return snapshot


def restore(cluster: "Cluster", snapshot: Snapshot) -> None:
    if cluster.folder not in snapshot.folder.parents:
        raise ClusterFailed("this snapshot is of another cluster")
    address = cluster.zookeeper_connect
    cluster.kill_all()
    put_back(snapshot.folder, snapshot.places)
    cluster.start_all(zookeeper_port=address.rpartition(":")[2])

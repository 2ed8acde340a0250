"""`meta.properties`: the owner of a log directory. Every directory of a broker must name the same broker and cluster.

A Java properties file. Version 0 is ZooKeeper mode's (`broker.id`), version 1 KRaft's (`node.id`); both are read, and
a file is written back in the version in which it was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from barnabas.base.config.properties import format_properties, parse
from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.base.ids import BrokerId, format_uuid, parse_uuid
from barnabas.broker.storage.checkpoints import CheckpointError, parse_integer

_VERSION: Final = "version"
_CLUSTER_ID: Final = "cluster.id"
_BROKER_ID: Final = "broker.id"
_NODE_ID: Final = "node.id"
_DIRECTORY_ID: Final = "directory.id"
_INT32_MAX: Final = (1 << 31) - 1


class InconsistentMetaProperties(BarnabasError):
    """A log directory that belongs to another broker or another cluster; the broker must not touch it."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    broker_id: BrokerId | None = None
    cluster_id: str | None = None
    #: 16 bytes. KIP-858 writes it also in ZooKeeper mode, during a migration to KRaft.
    directory_id: bytes | None = None
    version: int = 0


def read(path: str, *, disk: Disk = REAL_DISK) -> MetaProperties | None:
    """Read the file; None if there is none: a new directory."""
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        # Java's Properties.load reads bytes as ISO-8859-1 with escapes for other characters: no byte is invalid.
        properties = parse(data.decode("latin-1"))
    except ConfigError as error:
        raise CheckpointError(path, 0, str(error)) from None
    version = _integer(path, properties, _VERSION, 0)
    if version not in (0, 1):
        raise CheckpointError(path, 0, f"version {version} is not known")
    broker_id = _integer(path, properties, _BROKER_ID if version == 0 else _NODE_ID, None)
    cluster_id = properties.get(_CLUSTER_ID)
    if version == 1 and (broker_id is None or cluster_id is None):
        raise CheckpointError(path, 0, f"{_NODE_ID} and {_CLUSTER_ID} are expected in version 1")
    directory_id = None
    if _DIRECTORY_ID in properties:
        try:
            directory_id = parse_uuid(properties[_DIRECTORY_ID])
        except ValueError as error:
            raise CheckpointError(path, 0, f"{_DIRECTORY_ID} cannot be read: {error}") from None
    return MetaProperties(None if broker_id is None else BrokerId(broker_id), cluster_id, directory_id, version or 0)


def write(path: str, meta: MetaProperties, *, now_ms: int, disk: Disk = REAL_DISK) -> None:
    """Write the file atomically; `now_ms` goes into the comment that Java's Properties.store writes."""
    disk.replace_file(path, encode(meta, now_ms=now_ms))


def encode(meta: MetaProperties, *, now_ms: int) -> bytes:
    fields: dict[str, str] = {}
    if meta.broker_id is not None:
        fields[_BROKER_ID if meta.version == 0 else _NODE_ID] = str(meta.broker_id)
    fields[_VERSION] = str(meta.version)
    if meta.cluster_id is not None:
        fields[_CLUSTER_ID] = meta.cluster_id
    if meta.directory_id is not None:
        fields[_DIRECTORY_ID] = format_uuid(meta.directory_id)
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    comment = f"#\n#{moment:%a %b %d %H:%M:%S} UTC {moment:%Y}\n"
    return (comment + format_properties(fields)).encode("latin-1")


def check(
    found: Mapping[str, MetaProperties | None], *, broker_id: int, cluster_id: str | None
) -> dict[str, MetaProperties]:
    """Return the content that each directory's file should have. Raises `InconsistentMetaProperties`, which names the
    directory.

    `found` maps a log directory to its present content. `cluster_id` None: not known yet. The caller writes the files whose
    content differs from `found`.
    """
    clusters = {meta.cluster_id: log_dir for log_dir, meta in found.items() if meta and meta.cluster_id}
    if len(clusters) > 1:
        listed = ", ".join(f"{log_dir}: {cluster}" for cluster, log_dir in clusters.items())
        raise InconsistentMetaProperties(f"log directories belong to different clusters ({listed})")
    expected_cluster = cluster_id or next(iter(clusters), None)
    answer = {}
    for log_dir, meta in found.items():
        if meta is None:
            answer[log_dir] = MetaProperties(BrokerId(broker_id), expected_cluster)
            continue
        if meta.broker_id is not None and meta.broker_id != broker_id:
            raise InconsistentMetaProperties(
                f"{log_dir} belongs to broker {meta.broker_id}, this is broker {broker_id}: set broker.id to the stored "
                "value, or use another directory"
            )
        if meta.cluster_id is not None and expected_cluster is not None and meta.cluster_id != expected_cluster:
            raise InconsistentMetaProperties(
                f"{log_dir} belongs to cluster {meta.cluster_id}, this broker joins {expected_cluster}: "
                "check zookeeper.connect, or use another directory"
            )
        answer[log_dir] = MetaProperties(BrokerId(broker_id), expected_cluster, meta.directory_id, meta.version)
    return answer


def _integer(path: str, properties: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return parse_integer(path, 0, text.strip(), _INT32_MAX)
    except CheckpointError as error:
        raise CheckpointError(path, 0, f"{name}: {error.why}") from None

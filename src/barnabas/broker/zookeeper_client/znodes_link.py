"""The data of the znodes of links: mirrored topics, the progress of each, and the known leader epochs of the source.

    /barnabas/links/NAME                        LinkSpec
    /barnabas/links/NAME/topics/TOPIC           MirrorTopic
    /barnabas/links/NAME/topics/TOPIC/N         MirrorPartition: the source's leader epochs in partition N
    /barnabas/links/NAME/acls/TYPE-PATTERN-NAME the entries that the link added to the ACLs of a resource, as Kafka writes ACLs
    /barnabas/link_changes/link_change_N        LinkChange: read the link again

Pure. Any client may have written them: invalid data raises `Malformed`, which names the path.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.base.ids import NO_EPOCH, NO_OFFSET, ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId, format_uuid, parse_uuid
from barnabas.broker.zookeeper_client.json_data import dump, int32, reading, text

NAME_LENGTH_MAX: Final = 100
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
_VERSION: Final = 1
#: Epochs that a partition's znode keeps. Older ones only matter to a source that goes back behind all of these.
EPOCHS_MAX: Final = 500


def is_link_name(name: str) -> bool:
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A link as it was created. `configs` are stored with encrypted passwords."""

    configs: Mapping[str, str] = field(repr=False)
    topics: str
    groups: str | None = None
    acls: bool = False
    start: str = "earliest"
    restart_recreated: bool = False
    adopt: bool = False
    paused: bool = False

    def encode(self) -> bytes:
        return dump(
            {
                "version": _VERSION,
                "configs": dict(self.configs),
                "topics": self.topics,
                "groups": self.groups,
                "acls": self.acls,
                "start": self.start,
                "restart_recreated": self.restart_recreated,
                "adopt": self.adopt,
                "paused": self.paused,
            }
        )

    @staticmethod
    def decode(path: str, data: bytes) -> "LinkSpec":
        with reading(path, data) as value:
            _check_version(path, value["version"])
            return LinkSpec(
                configs={text(name): text(each) for name, each in value["configs"].items()},
                topics=text(value["topics"]),
                groups=None if value["groups"] is None else text(value["groups"]),
                acls=_flag(value["acls"]),
                start=text(value["start"]),
                restart_recreated=_flag(value["restart_recreated"]),
                adopt=_flag(value["adopt"]),
                paused=_flag(value["paused"]),
            )


class MirrorState(Enum):
    MIRRORING = "mirroring"
    PAUSED = "paused"
    #: Until every partition has copied everything from the source.
    PROMOTING = "promoting"
    #: At once, however far each partition has copied.
    PROMOTING_NOW = "promoting-now"
    PROMOTED = "promoted"
    #: The link stopped the topic by itself: `reason` says why.
    STOPPED = "stopped"

    @property
    def is_promoting(self) -> bool:
        return self in (MirrorState.PROMOTING, MirrorState.PROMOTING_NOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopic:
    state: MirrorState = MirrorState.MIRRORING
    reason: str = ""
    #: Zero if the source has no topic ids.
    source_id: TopicId = ZERO_TOPIC_ID
    #: Whether it was an independent topic that the source mirrored until it was promoted: its logs are cut where the two
    #: differ.
    adopted: bool = False

    def encode(self) -> bytes:
        return dump(
            {
                "version": _VERSION,
                "state": self.state.value,
                "reason": self.reason,
                "source_topic_id": format_uuid(self.source_id),
                "adopted": self.adopted,
            }
        )

    @staticmethod
    def decode(path: str, data: bytes) -> "MirrorTopic":
        with reading(path, data) as value:
            _check_version(path, value["version"])
            return MirrorTopic(
                state=MirrorState(value["state"]),
                reason=text(value["reason"]),
                source_id=TopicId(parse_uuid(text(value["source_topic_id"]))),
                adopted=_flag(value["adopted"]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPartition:
    #: Leader epoch, in this cluster, of the leader that wrote it: a former leader that wakes up late does not overwrite it.
    leader_epoch: LeaderEpoch = NO_EPOCH
    #: The source's leader epochs and where each starts, in order.
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    #: The leader epoch of this cluster in which `epochs` last changed, and the log end then. A replica without a record of that
    #: epoch has none of the records that `epochs` describes: its records from `noted_at` on are older.
    noted_in: LeaderEpoch = NO_EPOCH
    noted_at: Offset = NO_OFFSET
    #: In an adopted topic: the log has been truncated to where it differs from its source.
    is_parted: bool = False
    #: The end of the mirror when it was promoted; None: it was not promoted. Nothing is copied after that.
    final_offset: Offset | None = None
    #: The source's log end at that time, as far as known, and the age of the newest record; -1: unknown.
    source_end: int = -1
    lag_ms: int = -1
    #: Whether its open transactions are aborted and all records are committed.
    is_done: bool = False
    #: The largest producer id in its records.
    producer_id_max: int = -1

    def encode(self) -> bytes:
        return dump(
            {
                "version": _VERSION,
                "leader_epoch": self.leader_epoch,
                "epochs": [list(each) for each in self.epochs[-EPOCHS_MAX:]],
                "noted_in": self.noted_in,
                "noted_at": self.noted_at,
                "is_parted": self.is_parted,
                "final_offset": self.final_offset,
                "source_end": self.source_end,
                "lag_ms": self.lag_ms,
                "is_done": self.is_done,
                "producer_id_max": self.producer_id_max,
            }
        )

    @staticmethod
    def decode(path: str, data: bytes) -> "MirrorPartition":
        with reading(path, data) as value:
            _check_version(path, value["version"])
            epochs = tuple((LeaderEpoch(int32(epoch)), _offset(start)) for epoch, start in value["epochs"])
            for (epoch, start), (next_epoch, next_start) in pairwise(epochs):
                if epoch >= next_epoch or start > next_start:
                    raise ValueError(f"epoch {next_epoch} from {next_start} follows epoch {epoch} from {start}")
            final = value["final_offset"]
            return MirrorPartition(
                leader_epoch=LeaderEpoch(int32(value["leader_epoch"])),
                epochs=epochs,
                # Earlier versions of Barnabas did not write these.
                noted_in=LeaderEpoch(int32(value.get("noted_in", NO_EPOCH))),
                noted_at=Offset(_int64(value.get("noted_at", NO_OFFSET))),
                is_parted=_flag(value["is_parted"]),
                final_offset=None if final is None else _offset(final),
                source_end=_int64(value["source_end"]),
                lag_ms=_int64(value["lag_ms"]),
                is_done=_flag(value["is_done"]),
                producer_id_max=_int64(value["producer_id_max"]),
            )


@dataclass(frozen=True, slots=True)
class LinkChange:
    link: str
    #: None: the link itself.
    topic: str | None = None

    def encode(self) -> bytes:
        return dump({"version": _VERSION, "link": self.link, "topic": self.topic})

    @staticmethod
    def decode(path: str, data: bytes) -> "LinkChange":
        with reading(path, data) as value:
            _check_version(path, value["version"])
            link, topic = text(value["link"]), value["topic"]
            if not is_link_name(link):
                raise ValueError(f"{link!r} is not the name of a link")
            return LinkChange(link, None if topic is None else text(topic))


def _check_version(path: str, version: object) -> None:
    if version != _VERSION:
        raise Malformed(f"{path}: version {version!r} is not known")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _int64(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{value!r} does not fit into 64 bits")
    return value


def _offset(value: object) -> Offset:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not an offset")
    return Offset(value)

"""The contents of a backup, and its JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from barnabas.base.ids import TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli._command import UsageError
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.admin.groups import CommittedOffset

KIND: Final = "barnabas metadata"
#: Rises when an older barnabas can no longer restore a newer backup.
VERSION: Final = 1

#: `(("client-id", "app"), ("user", None))`: sorted by type; None is the type's default.
Entity = tuple[tuple[str, str | None], ...]
#: Encrypts or decrypts a text.
Coder = Callable[[str], str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    #: In Kafka's text form; None if the cluster has no ids.
    id: str | None
    #: Sorted by number, without gaps.
    partitions: tuple[Partition, ...]
    settings: Mapping[str, str]


@dataclass(slots=True)
class Document:
    cluster_id: str | None = None
    #: The time of the backup, in UTC.
    taken: str = ""
    topics: dict[str, Topic] = field(default_factory=dict)
    #: Dynamic settings by broker id; those of all brokers under `DEFAULT_BROKER`.
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    #: Verifiers by user and mechanism, as Kafka stores them. Keep them secret: they allow guessing the password offline.
    scram: dict[str, dict[str, str]] = field(default_factory=dict)
    acls: dict[ResourcePattern, frozenset[Ace]] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    #: The lowest producer id that no broker has received; None if unknown.
    producer_id_next: int | None = None
    #: What the backup does not contain, and why, for people.
    left_out: list[str] = field(default_factory=list)


def entity(named: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(named.items()))


def to_json(document: Document, seal: Coder | None = None) -> dict[str, Any]:
    """`seal` encrypts the verifiers."""
    scram: object = {user: dict(sorted(held.items())) for user, held in sorted(document.scram.items())}
    if seal is not None and document.scram:
        scram = {"sealed": seal(json.dumps(scram))}
    return {
        "kind": KIND,
        "version": VERSION,
        "taken": document.taken,
        "cluster_id": document.cluster_id,
        "left_out": document.left_out,
        "topics": [_topic_json(topic) for _, topic in sorted(document.topics.items())],
        "brokers": {name: dict(sorted(held.items())) for name, held in sorted(document.brokers.items())},
        "quotas": [
            {"entity": dict(each), "values": values}
            for each, values in sorted(document.quotas.items(), key=lambda item: str(item[0]))
        ],
        "scram": scram,
        "acls": [
            {
                "resource_type": pattern.resource_type.name,
                "name": pattern.name,
                "pattern_type": pattern.pattern_type.name,
                "entries": [
                    {
                        "principal": ace.principal,
                        "host": ace.host,
                        "operation": ace.operation.name,
                        "permission": ace.permission.name,
                    }
                    for ace in sorted(aces)
                ],
            }
            for pattern, aces in sorted(document.acls.items())
        ],
        "groups": {group: _offsets_json(offsets) for group, offsets in sorted(document.groups.items())},
        "producer_id_next": document.producer_id_next,
    }


def _topic_json(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "settings": dict(sorted(topic.settings.items())),
        "partitions": [
            {"replicas": list(each.replicas), "isr": list(each.isr), "leader_epoch": each.leader_epoch}
            for each in topic.partitions
        ],
    }


def _offsets_json(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[dict[str, Any]]:
    return [
        {
            "topic": where.topic,
            "partition": where.partition,
            "offset": held.offset,
            "leader_epoch": held.leader_epoch,
            "metadata": held.metadata,
        }
        for where, held in sorted(offsets.items())
    ]


def from_json(value: Mapping[str, Any], *, what: str, unseal: Coder | None = None) -> Document:
    """:raises UsageError: if the value is no backup, is from a newer version, or has encrypted verifiers and no `unseal`."""
    if value.get("kind") != KIND:
        raise UsageError(f"{what} is not a backup of metadata: its kind is not {KIND!r}")
    version = value.get("version")
    if not isinstance(version, int) or version < 1:
        raise UsageError(f"{what}: version {version!r} is not a version")
    if version > VERSION:
        raise UsageError(f"{what} is of version {version}; this barnabas knows {VERSION}: use a newer one")
    try:
        return _document(value, what, unseal)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{what} is damaged: {type(error).__name__} {error}") from None


def _document(value: Mapping[str, Any], what: str, unseal: Coder | None) -> Document:
    scram: Any = value["scram"]
    if "sealed" in scram:
        if unseal is None:
            raise UsageError(f"{what}: its SCRAM verifiers are encrypted; give --secret-file, or --without-scram")
        scram = json.loads(unseal(scram["sealed"]))
    return Document(
        cluster_id=value["cluster_id"],
        taken=value["taken"],
        topics={each["name"]: _topic(each) for each in value["topics"]},
        brokers={name: dict(held) for name, held in value["brokers"].items()},
        quotas={entity(each["entity"]): dict(each["values"]) for each in value["quotas"]},
        scram={user: dict(held) for user, held in scram.items()},
        acls={_pattern(each): frozenset(map(_ace, each["entries"])) for each in value["acls"]},
        groups={group: _offsets(held) for group, held in value["groups"].items()},
        producer_id_next=value["producer_id_next"],
        left_out=list(value["left_out"]),
    )


def _topic(value: Mapping[str, Any]) -> Topic:
    partitions = tuple(
        Partition(tuple(each["replicas"]), tuple(each["isr"]), int(each["leader_epoch"]))
        for each in value["partitions"]
    )
    return Topic(value["name"], value["id"], partitions, dict(value["settings"]))


def _pattern(value: Mapping[str, Any]) -> ResourcePattern:
    return ResourcePattern(AclResourceType[value["resource_type"]], value["name"], PatternType[value["pattern_type"]])


def _ace(value: Mapping[str, Any]) -> Ace:
    return Ace(value["principal"], value["host"], AclOperation[value["operation"]], Permission[value["permission"]])


def _offsets(value: list[Mapping[str, Any]]) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(each["topic"], each["partition"]): CommittedOffset(
            each["offset"], each["metadata"], each["leader_epoch"]
        )
        for each in value
    }


def counts(document: Document) -> str:
    """Summarise a backup in one line for people."""
    parts = {
        "topics": len(document.topics),
        "partitions": sum(len(topic.partitions) for topic in document.topics.values()),
        "brokers with settings": len(document.brokers),
        "quotas": len(document.quotas),
        "SCRAM verifiers": sum(map(len, document.scram.values())),
        "ACLs": sum(map(len, document.acls.values())),
        "groups": len(document.groups),
    }
    return ", ".join(f"{number} {what}" for what, number in parts.items())

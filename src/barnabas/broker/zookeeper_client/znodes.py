"""The data of the znodes: one frozen value per kind, with its JSON as Kafka 3.9 writes it (versions, keys, key order).

Pure. Decoders accept the data of every supported version of Kafka; encoders write what 3.9 writes. Invalid data raises
`Malformed`, which names the path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from barnabas.base.errors import Malformed
from barnabas.base.hosts import address
from barnabas.base.ids import TopicId, TopicPartition, format_uuid, parse_uuid
from barnabas.base.words import SECURITY_PROTOCOLS
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.json_data import (
    dump,
    int32,
    load,
    mutable_map_order,
    properties_order,
    reading,
    text,
    wrong_shape,
)

#: "No leader", in a partition's state.
NO_LEADER = -1
#: Leader and epoch in messages about a partition whose topic is being deleted.
LEADER_DURING_DELETE = -2
EPOCH_DURING_DELETE = -2


PRODUCER_ID_BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1


# --- /brokers/ids/N ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one of a broker's listeners."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{address(self.host, self.port)}"

    @staticmethod
    def parse(written: str, protocols: Mapping[str, str]) -> "Endpoint":
        listener, separator, address = written.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.lstrip("-").isdigit():
            raise ValueError(f"{written!r} is not an endpoint (LISTENER://host:port)")
        # A listener that the map lacks is named after its protocol, as in registrations before version 4.
        protocol = protocols.get(listener, listener)
        return Endpoint(listener, protocol, host.removeprefix("[").removesuffix("]"), int32(port))


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    #: Features that only some brokers have: name -> (lowest, highest version).
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    jmx_port: int = -1
    timestamp_ms: int = 0
    version: int = 5
    #: The epoch of this process's first registration, written when it registers again after its session was lost: its logs
    #: have lost nothing meanwhile. None in a first registration, and in Kafka's, which ignores the field.
    incarnation: int | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    def encode(self) -> bytes:
        # Old clients know only one plaintext address; a broker that has none registers an empty one for them.
        plaintext = next((each for each in self.endpoints if each.security_protocol == "PLAINTEXT"), None)
        value: dict[str, object] = {
            "features": {
                name: {"min_version": low, "max_version": high} for name, (low, high) in self.features.items()
            },
            "listener_security_protocol_map": {each.listener: each.security_protocol for each in self.endpoints},
            "endpoints": [str(each) for each in self.endpoints],
            "rack": self.rack,
            "jmx_port": self.jmx_port,
            "port": plaintext.port if plaintext else -1,
            "host": plaintext.host if plaintext else None,
            "version": self.version,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is None:
            del value["rack"]
        if self.incarnation is not None:
            value["incarnation"] = self.incarnation
        return dump(value)

    @staticmethod
    def decode(broker_id: int, data: bytes) -> "BrokerRegistration":
        path = paths.broker_id(broker_id)
        with reading(path, data) as value:
            version = int(value["version"])
            if version < 1:
                raise Malformed(f"{path}: version {version} of a broker's registration is not known")
            protocols = value.get("listener_security_protocol_map") or {}
            endpoints: tuple[Endpoint, ...]
            if version == 1:
                endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", text(value["host"]), int32(value["port"])),)
            else:
                endpoints = tuple(Endpoint.parse(each, protocols) for each in value["endpoints"])
            for each in endpoints:
                if each.security_protocol not in SECURITY_PROTOCOLS:
                    raise ValueError(f"{each.security_protocol!r} is not a security protocol")
            features = {
                name: (int32(versions["min_version"]), int32(versions["max_version"]))
                for name, versions in (value.get("features") or {}).items()
            }
            rack, incarnation = value.get("rack"), value.get("incarnation")
            return BrokerRegistration(
                id=broker_id,
                endpoints=endpoints,
                rack=None if rack is None else text(rack),
                features=features,
                jmx_port=int(value.get("jmx_port", -1)),
                timestamp_ms=int(value.get("timestamp", 0)),
                version=version,
                incarnation=None if incarnation is None else int(incarnation),
            )


# --- /brokers/topics/T ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Where a partition's replicas live, and where they are moving (KIP-455)."""

    #: All replicas, including those being added or removed; the first of the target is the preferred leader.
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    def reassign_to(self, target: Iterable[int]) -> "ReplicaAssignment":
        wanted = tuple(dict.fromkeys(target))
        origin = self.origin
        everyone = tuple(dict.fromkeys((*wanted, *origin)))
        return ReplicaAssignment(
            replicas=everyone,
            adding=tuple(each for each in everyone if each not in origin),
            removing=tuple(each for each in everyone if each not in wanted),
        )

    @staticmethod
    def sensible(replicas: Iterable[int], adding: Iterable[int], removing: Iterable[int]) -> "ReplicaAssignment":
        """Correct data that any client may have written: no replica twice, only replicas can be added or removed, and never
        all of them removed."""
        everyone = tuple(dict.fromkeys(replicas))
        coming, going = set(adding), set(removing)
        made = ReplicaAssignment(
            everyone,
            adding=tuple(each for each in everyone if each in coming),
            removing=tuple(each for each in everyone if each in going),
        )
        return made if made.target else ReplicaAssignment(everyone)

    def without(self, *brokers: int) -> "ReplicaAssignment":
        return ReplicaAssignment(
            replicas=tuple(each for each in self.replicas if each not in brokers),
            adding=tuple(each for each in self.adding if each not in brokers),
            removing=tuple(each for each in self.removing if each not in brokers),
        )


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """A topic's identity and its partitions' replicas."""

    #: None in topics of a Kafka before 2.8: the controller assigns an id.
    topic_id: TopicId | None
    partitions: Mapping[int, ReplicaAssignment]

    def encode(self) -> bytes:
        names = mutable_map_order(str(number) for number in self.partitions)
        adding = [name for name in names if self.partitions[int(name)].adding]
        removing = [name for name in names if self.partitions[int(name)].removing]
        value: dict[str, object] = {
            "partitions": {name: list(self.partitions[int(name)].replicas) for name in names},
        }
        if self.topic_id is not None:
            value["topic_id"] = format_uuid(self.topic_id)
        value["adding_replicas"] = {name: list(self.partitions[int(name)].adding) for name in adding}
        value["removing_replicas"] = {name: list(self.partitions[int(name)].removing) for name in removing}
        value["version"] = 3
        return dump(value)

    @staticmethod
    def decode(topic: str, data: bytes) -> "TopicAssignment":
        path = paths.topic(topic)
        with reading(path, data) as value:
            adding = value.get("adding_replicas") or {}
            removing = value.get("removing_replicas") or {}
            topic_id = value.get("topic_id")
            return TopicAssignment(
                topic_id=TopicId(parse_uuid(topic_id)) if topic_id else None,
                partitions={
                    int32(number): ReplicaAssignment.sensible(
                        map(int32, replicas),
                        adding=map(int32, adding.get(number, ())),
                        removing=map(int32, removing.get(number, ())),
                    )
                    for number, replicas in (value.get("partitions") or {}).items()
                },
            )


# --- /brokers/topics/T/partitions/P/state -----------------------------------------------------------------------------


class LeaderRecoveryState(IntEnum):
    RECOVERED = 0
    #: The leader was elected uncleanly and has not yet reported that its data is consistent.
    RECOVERING = 1


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The leader of a partition and its in-sync replicas."""

    leader: int
    isr: tuple[int, ...]
    leader_epoch: int = 0
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    #: The znode's version: every write raises it, and a write with an outdated version is refused.
    partition_epoch: int = 0
    controller_epoch: int = 0

    def with_leader(self, leader: int, isr: tuple[int, ...] | None = None) -> "LeaderAndIsr":
        """Return the next leader epoch. Any change of the controller raises it, so that older leaders are fenced."""
        return LeaderAndIsr(
            leader,
            self.isr if isr is None else isr,
            self.leader_epoch + 1,
            self.recovery,
            self.partition_epoch,
            self.controller_epoch,
        )

    def by(self, controller_epoch: int) -> "LeaderAndIsr":
        """Return a copy that a controller of that epoch writes."""
        # A fail-over does this for thousands: `dataclasses.replace` takes several times as long.
        return LeaderAndIsr(
            self.leader, self.isr, self.leader_epoch, self.recovery, self.partition_epoch, controller_epoch
        )

    def at(self, partition_epoch: int) -> "LeaderAndIsr":
        """Return a copy with that version of the znode."""
        return LeaderAndIsr(
            self.leader, self.isr, self.leader_epoch, self.recovery, partition_epoch, self.controller_epoch
        )

    def encode(self) -> bytes:
        value: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
        }
        if self.recovery is not LeaderRecoveryState.RECOVERED:
            value["leader_recovery_state"] = int(self.recovery)
        value["leader_epoch"] = self.leader_epoch
        value["isr"] = list(self.isr)
        return dump(value)

    @staticmethod
    def decode(partition: TopicPartition, data: bytes, version: int) -> "LeaderAndIsr":
        path = paths.partition_state(partition)
        with reading(path, data) as value:
            return LeaderAndIsr(
                leader=int32(value["leader"]),
                isr=tuple(dict.fromkeys(map(int32, value["isr"]))),
                leader_epoch=int32(value["leader_epoch"]),
                recovery=LeaderRecoveryState(int(value.get("leader_recovery_state", 0))),
                partition_epoch=version,
                controller_epoch=int32(value["controller_epoch"]),
            )


# --- /controller, /controller_epoch, /feature, /cluster/id ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    broker_id: int
    timestamp_ms: int = 0
    #: -1 in a ZooKeeper cluster; a real epoch means that a KRaft quorum is taking over the cluster.
    kraft_epoch: int = -1

    def encode(self) -> bytes:
        return dump(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": self.kraft_epoch,
            }
        )

    @staticmethod
    def decode(data: bytes) -> "ControllerRegistration":
        with reading(paths.CONTROLLER, data) as value:
            return ControllerRegistration(
                broker_id=int32(value["brokerid"]),
                timestamp_ms=int(value.get("timestamp", 0)),
                kraft_epoch=int(value.get("kraftControllerEpoch", -1)),
            )


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    try:
        return int32(data)
    except ValueError as error:
        raise wrong_shape(paths.CONTROLLER_EPOCH, data, error) from error


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """Empty in a 3.9 cluster with ZooKeeper: a broker of that release exits on any finalized feature."""

    features: Mapping[str, int] = field(default_factory=dict)
    enabled: bool = True
    version: int = 2

    def encode(self) -> bytes:
        return dump(
            {
                "features": {name: {"max_version_level": level} for name, level in self.features.items()},
                "version": 2,
                "status": int(self.enabled),
            }
        )

    @staticmethod
    def decode(data: bytes) -> "FinalizedFeatures":
        with reading(paths.FEATURE, data) as value:
            return FinalizedFeatures(
                features={name: int(levels["max_version_level"]) for name, levels in value["features"].items()},
                enabled=bool(int(value["status"])),
                version=int(value["version"]),
            )


def encode_cluster_id(cluster_id: str) -> bytes:
    return dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    with reading(paths.CLUSTER_ID, data) as value:
        return str(value["id"])


# --- /config ----------------------------------------------------------------------------------------------------------


def encode_config(settings: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": {name: settings[name] for name in properties_order(settings)}})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    if not data:
        return {}
    settings = load(path, data).get("config")
    if not isinstance(settings, dict):
        return {}
    return {name: str(value) for name, value in settings.items()}


def encode_config_change(sanitized_entity_path: str) -> bytes:
    """Encode the changed path below /config: `topics/orders`, `users/alice/clients/app`, `brokers/<default>`."""
    return dump({"version": 2, "entity_path": sanitized_entity_path})


def decode_config_change(data: bytes) -> str:
    value = load(paths.CONFIG_CHANGES, data)
    version = value.get("version")
    if version == 2 and isinstance(value.get("entity_path"), str):
        return str(value["entity_path"])
    if version == 1 and "entity_type" in value and "entity_name" in value:
        return f"{value['entity_type']}/{value['entity_name']}"
    raise Malformed(f"{paths.CONFIG_CHANGES}: unknown notification: {data[:200]!r}")


# --- notifications and requests by znode ------------------------------------------------------------------------------


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    return dump({"version": 1, "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]})


def _decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    with reading(path, data) as value:
        return [TopicPartition(text(each["topic"]), int32(each["partition"])) for each in value["partitions"]]


def encode_isr_change(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode_partitions(partitions)


def decode_isr_change(data: bytes) -> list[TopicPartition]:
    return _decode_partitions(paths.ISR_CHANGE_NOTIFICATION, data)


def encode_preferred_replica_election(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode_partitions(partitions)


def decode_preferred_replica_election(data: bytes) -> list[TopicPartition]:
    return _decode_partitions(paths.PREFERRED_REPLICA_ELECTION, data)


def encode_reassign_partitions(targets: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
    return dump(
        {
            "version": 1,
            "partitions": [
                {"topic": each.topic, "partition": each.partition, "replicas": list(replicas)}
                for each, replicas in targets.items()
            ],
        }
    )


def decode_reassign_partitions(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    with reading(paths.REASSIGN_PARTITIONS, data) as value:
        return {
            TopicPartition(text(each["topic"]), int32(each["partition"])): tuple(map(int32, each["replicas"]))
            for each in value["partitions"]
        }


#: The only kind of log directory event: the directory failed.
LOG_DIR_FAILURE = 1


def encode_log_dir_event(broker_id: int) -> bytes:
    return dump({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(data: bytes) -> int:
    with reading(paths.LOG_DIR_EVENT_NOTIFICATION, data) as value:
        return int32(value["broker"])


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `first` to `last`, both included, that one broker may hand out."""

    broker_id: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def next_for(self, broker_id: int) -> "ProducerIdBlock":
        if self.last > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise OverflowError(f"producer ids are used up: the last block ended at {self.last}")
        return ProducerIdBlock(broker_id, self.last + 1, self.last + PRODUCER_ID_BLOCK_SIZE)

    def encode(self) -> bytes:
        return dump(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @staticmethod
    def first_for(broker_id: int) -> "ProducerIdBlock":
        return ProducerIdBlock(broker_id, 0, PRODUCER_ID_BLOCK_SIZE - 1)

    @staticmethod
    def decode(data: bytes) -> "ProducerIdBlock":
        with reading(paths.LATEST_PRODUCER_ID_BLOCK, data) as value:
            return ProducerIdBlock(int(value["broker"]), int(value["block_start"]), int(value["block_end"]))

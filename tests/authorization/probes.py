"""One request of every API, two for APIs with two kinds, and the part of an answer that shows permissions.

A probe changes nothing that another one sees: it only validates, names missing things, or has stale epochs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.wire.messages.base import ApiMessage, Message
from barnabas.wire.record_build import BatchBuilder
from barnabas.wire.versions import api_named

#: Names of existing resources, and names of missing ones to which the same ACLs apply.
TOPIC, NEW_TOPIC, BAD_TOPIC, HIDDEN_TOPIC = "orders", "orders-new", "orders new", "secret"
GROUP, NO_GROUP, HIDDEN_GROUP = "payments", "payments-none", "secret-group"
#: Transactional ids. The second one has an open transaction with partitions of both topics.
TXN, OPEN_TXN, HIDDEN_TXN = "ledger", "ledger-open", "secret-ledger"
#: The owner of the existing token, and the owner of tokens that alice creates and may then see.
OWNER, OTHER_OWNER = "bob", "bobby"

_MANY_MS: Final = 5_000


@dataclass(frozen=True)
class Stage:
    """The properties of the cluster that requests need."""

    topic_id: bytes
    hidden_id: bytes


@dataclass(frozen=True)
class Probe:
    name: str
    api: str
    version: int
    fields: Callable[[Stage], dict[str, Any]]

    def request(self, stage: Stage) -> ApiMessage:
        request_class = api_named(self.api).request_class
        made = _made(request_class, self.fields(stage))
        assert isinstance(made, ApiMessage)
        return made


def _made(kind: type[Message], fields: dict[str, Any]) -> Message:
    """Return a message from plain dicts and lists."""
    values: dict[str, Any] = {}
    for name, value in fields.items():
        struct = kind.__wire__[name].type
        if isinstance(struct, type) and isinstance(value, dict):
            value = _made(struct, value)
        elif isinstance(struct, type) and isinstance(value, list):
            value = [_made(struct, each) for each in value]
        values[name] = value
    return kind(**values)


def _batch(*, transactional: bool = False) -> bytes:
    builder = BatchBuilder()
    if transactional:
        builder = BatchBuilder(producer_id=4_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(timestamp=int(time.time() * 1000), key=None, value=b"x")
    return builder.build()


def _fixed(api: str, version: int, name: str = "", /, **fields: Any) -> Probe:
    return Probe(name or f"{api} v{version}", api, version, lambda stage: fields)


def _staged(api: str, version: int, name: str, fields: Callable[[Stage], dict[str, Any]]) -> Probe:
    return Probe(name, api, version, fields)


def _data() -> Iterator[Probe]:
    def produce(**more: Any) -> dict[str, Any]:
        partition = {"index": 0, "records": _batch(transactional="transactional_id" in more)}
        return {
            "acks": -1,
            "timeout_ms": _MANY_MS,
            "topic_data": [{"name": TOPIC, "partition_data": [partition]}],
        } | more

    yield _fixed("Produce", 11, **produce())
    yield _fixed("Produce", 11, "Produce in a transaction", **produce(transactional_id=TXN))
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}]
    quick = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "session_epoch": -1}
    yield _fixed("Fetch", 12, "Fetch by name", **quick, replica_id=-1, topics=[{"topic": TOPIC, "partitions": wanted}])
    yield _staged(
        "Fetch",
        16,
        "Fetch by id",
        lambda stage: {
            **quick,
            "topics": [{"topic_id": each, "partitions": wanted} for each in (stage.topic_id, stage.hidden_id)],
        },
    )
    yield _fixed(
        "Fetch", 12, "Fetch as follower", **quick, replica_id=9, topics=[{"topic": TOPIC, "partitions": wanted}]
    )
    earliest = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]
    yield _fixed(
        "ListOffsets",
        7,
        replica_id=-1,
        topics=[{"name": TOPIC, "partitions": earliest}, {"name": HIDDEN_TOPIC, "partitions": earliest}],
    )
    end = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    yield _fixed("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": TOPIC, "partitions": end}])
    yield _fixed(
        "DeleteRecords",
        2,
        timeout_ms=_MANY_MS,
        topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}],
    )
    yield _fixed("DescribeProducers", 0, topics=[{"name": TOPIC, "partition_indexes": [0]}])


def _metadata() -> Iterator[Probe]:
    flags = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": True}
    yield _fixed("Metadata", 12, "Metadata of all topics", topics=None, allow_auto_topic_creation=False, **flags)
    yield _fixed(
        "Metadata",
        12,
        "Metadata by name",
        topics=[{"name": TOPIC}, {"name": NEW_TOPIC}],
        allow_auto_topic_creation=False,
        **flags,
    )
    yield _fixed(
        "Metadata", 12, "Metadata that creates", topics=[{"name": BAD_TOPIC}], allow_auto_topic_creation=True, **flags
    )
    yield _staged(
        "Metadata",
        12,
        "Metadata by id",
        lambda stage: {
            "topics": [{"topic_id": stage.topic_id, "name": None}, {"topic_id": stage.hidden_id, "name": None}],
            "allow_auto_topic_creation": False,
        },
    )
    yield _fixed("Metadata", 10, "Metadata of the cluster", topics=[], include_cluster_authorized_operations=True)
    yield _fixed("DescribeCluster", 1, include_cluster_authorized_operations=True)
    yield _fixed("ApiVersions", 3, client_software_name="table", client_software_version="1")


def _groups() -> Iterator[Probe]:
    commit = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": None}]
    yield _fixed(
        "OffsetCommit",
        8,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=[{"name": TOPIC, "partitions": commit}, {"name": HIDDEN_TOPIC, "partitions": commit}],
    )
    topics = [{"name": TOPIC, "partition_indexes": [0]}, {"name": HIDDEN_TOPIC, "partition_indexes": [0]}]
    yield _fixed("OffsetFetch", 7, group_id=GROUP, topics=topics)
    yield _fixed("OffsetFetch", 7, "OffsetFetch of all topics", group_id=GROUP, topics=None)
    yield _fixed(
        "OffsetFetch", 8, groups=[{"group_id": GROUP, "topics": topics}, {"group_id": HIDDEN_GROUP, "topics": None}]
    )
    yield _fixed("FindCoordinator", 3, "FindCoordinator of a group", key=GROUP, key_type=0)
    yield _fixed("FindCoordinator", 4, "FindCoordinator of groups", key_type=0, coordinator_keys=[GROUP, HIDDEN_GROUP])
    yield _fixed("FindCoordinator", 4, "FindCoordinator of a transaction", key_type=1, coordinator_keys=[TXN])
    protocols = [{"name": "range", "metadata": b""}]
    yield _fixed(
        "JoinGroup",
        9,
        group_id=NO_GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="nobody",
        protocol_type="consumer",
        protocols=protocols,
    )
    yield _fixed(
        "SyncGroup",
        5,
        group_id=NO_GROUP,
        generation_id=1,
        member_id="nobody",
        protocol_type="consumer",
        protocol_name="range",
    )
    yield _fixed("Heartbeat", 4, group_id=NO_GROUP, generation_id=1, member_id="nobody")
    yield _fixed("LeaveGroup", 5, group_id=NO_GROUP, members=[{"member_id": "nobody"}])
    yield _fixed("DescribeGroups", 5, groups=[GROUP, HIDDEN_GROUP], include_authorized_operations=True)
    yield _fixed("ListGroups", 4)
    yield _fixed("DeleteGroups", 2, groups_names=[NO_GROUP])
    yield _fixed("OffsetDelete", 0, group_id=GROUP, topics=[{"name": TOPIC, "partitions": [{"partition_index": 7}]}])


def _transactions() -> Iterator[Probe]:
    yield _fixed("InitProducerId", 4, "InitProducerId with an id", transactional_id=TXN, transaction_timeout_ms=10_000)
    yield _fixed("InitProducerId", 4, "InitProducerId without", transactional_id=None, transaction_timeout_ms=10_000)
    topics = [{"name": TOPIC, "partitions": [0]}, {"name": NEW_TOPIC, "partitions": [0]}]
    yield _fixed(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=TXN,
        v3_and_below_producer_id=4_000_000,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )
    one = {
        "transactional_id": TXN,
        "producer_id": 4_000_000,
        "producer_epoch": 0,
        "verify_only": True,
        "topics": topics[:1],
    }
    yield _fixed("AddPartitionsToTxn", 4, transactions=[one])
    known: dict[str, Any] = {"transactional_id": TXN, "producer_id": 4_000_000, "producer_epoch": 0}
    yield _fixed("AddOffsetsToTxn", 3, **known, group_id=GROUP)
    yield _fixed("EndTxn", 3, **known, committed=True)
    commit = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": None}]
    yield _fixed("TxnOffsetCommit", 3, **known, group_id=GROUP, topics=[{"name": TOPIC, "partitions": commit}])
    marker = {
        "producer_id": 4_000_000,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": NEW_TOPIC, "partition_indexes": [0]}],
    }
    yield _fixed("WriteTxnMarkers", 1, markers=[marker])
    yield _fixed("DescribeTransactions", 0, transactional_ids=[OPEN_TXN, HIDDEN_TXN])
    yield _fixed("ListTransactions", 0)


def _topics() -> Iterator[Probe]:
    yield _fixed(
        "CreateTopics",
        7,
        topics=[{"name": NEW_TOPIC, "num_partitions": 1, "replication_factor": 1}],
        timeout_ms=_MANY_MS,
        validate_only=True,
    )
    yield _fixed("DeleteTopics", 5, topic_names=[NEW_TOPIC], timeout_ms=_MANY_MS)
    yield _fixed(
        "CreatePartitions",
        3,
        topics=[{"name": TOPIC, "count": 2, "assignments": None}],
        timeout_ms=_MANY_MS,
        validate_only=True,
    )
    partitions = [{"topic": NEW_TOPIC, "partitions": [0]}]
    yield _fixed("ElectLeaders", 2, election_type=0, topic_partitions=partitions, timeout_ms=_MANY_MS)
    moved = [{"name": NEW_TOPIC, "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    yield _fixed("AlterPartitionReassignments", 0, timeout_ms=_MANY_MS, topics=moved)
    yield _fixed("ListPartitionReassignments", 0, timeout_ms=_MANY_MS, topics=None)
    yield _fixed(
        "AlterReplicaLogDirs", 2, dirs=[{"path": "/nowhere", "topics": [{"name": NEW_TOPIC, "partitions": [0]}]}]
    )
    yield _fixed("DescribeLogDirs", 4, topics=[{"topic": TOPIC, "partitions": [0]}])


_TOPIC_CONFIG, _BROKER_CONFIG, _LOGGER_CONFIG = 2, 4, 8


def _settings() -> Iterator[Probe]:
    for kind, resource_type, name in (("a topic", _TOPIC_CONFIG, TOPIC), ("a broker", _BROKER_CONFIG, "1")):
        resource = {"resource_type": resource_type, "resource_name": name}
        yield _fixed(
            "DescribeConfigs",
            4,
            f"DescribeConfigs of {kind}",
            resources=[resource | {"configuration_keys": ["nothing"]}],
        )
        yield _fixed(
            "AlterConfigs", 2, f"AlterConfigs of {kind}", resources=[resource | {"configs": []}], validate_only=True
        )
        yield _fixed(
            "IncrementalAlterConfigs",
            1,
            f"IncrementalAlterConfigs of {kind}",
            resources=[resource | {"configs": []}],
            validate_only=True,
        )
    loggers = {"resource_type": _LOGGER_CONFIG, "resource_name": "1"}
    yield _fixed(
        "DescribeConfigs", 4, "DescribeConfigs of loggers", resources=[loggers | {"configuration_keys": ["no"]}]
    )
    yield _fixed(
        "IncrementalAlterConfigs",
        1,
        "IncrementalAlterConfigs of loggers",
        resources=[loggers | {"configs": []}],
        validate_only=True,
    )
    everyone = {"resource_type": _BROKER_CONFIG, "resource_name": ""}
    yield _fixed(
        "IncrementalAlterConfigs",
        1,
        "IncrementalAlterConfigs of all brokers",
        resources=[everyone | {"configs": []}],
        validate_only=True,
    )
    yield _fixed("DescribeClientQuotas", 1, components=[], strict=False)
    yield _fixed(
        "AlterClientQuotas",
        1,
        entries=[
            {
                "entity": [{"entity_type": "user", "entity_name": OWNER}],
                "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
            }
        ],
        validate_only=True,
    )
    yield _fixed("DescribeUserScramCredentials", 0, users=[{"name": OWNER}])
    yield _fixed("AlterUserScramCredentials", 0, deletions=[{"name": OWNER, "mechanism": 1}], upsertions=[])
    yield _fixed(
        "UpdateFeatures",
        1,
        timeout_ms=_MANY_MS,
        feature_updates=[{"feature": "nothing", "max_version_level": 1, "upgrade_type": 1}],
        validate_only=True,
    )


def _security() -> Iterator[Probe]:
    unknown_user: dict[str, Any] = {
        "resource_type_filter": 2,
        "resource_name_filter": "nothing",
        "pattern_type_filter": 3,
    }
    unknown_user |= {"principal_filter": "User:nobody", "host_filter": None, "operation": 1, "permission_type": 1}
    yield _fixed("DescribeAcls", 3, **unknown_user)
    empty = {"resource_type": 2, "resource_name": "", "resource_pattern_type": 3, "principal": "User:nobody"}
    yield _fixed("CreateAcls", 3, creations=[empty | {"host": "*", "operation": 3, "permission_type": 3}])
    yield _fixed("DeleteAcls", 3, filters=[unknown_user])
    yield _fixed(
        "CreateDelegationToken",
        3,
        "CreateDelegationToken for another",
        owner_principal_type="User",
        owner_principal_name=OTHER_OWNER,
        renewers=[],
        max_lifetime_ms=1000,
    )
    yield _fixed("RenewDelegationToken", 2, hmac=b"none", renew_period_ms=1000)
    yield _fixed("ExpireDelegationToken", 2, hmac=b"none", expiry_time_period_ms=1000)
    yield _fixed("DescribeDelegationToken", 3, owners=[{"principal_type": "User", "principal_name": OWNER}])


def _brokers() -> Iterator[Probe]:
    stale: dict[str, Any] = {"controller_id": 1, "controller_epoch": 0, "broker_epoch": 0}
    yield _fixed("LeaderAndIsr", 7, **stale, type=0)
    yield _fixed("StopReplica", 4, **stale)
    yield _fixed("UpdateMetadata", 8, **stale)
    yield _fixed("ControlledShutdown", 3, broker_id=1, broker_epoch=0)
    yield _fixed("AlterPartition", 3, broker_id=1, broker_epoch=0, topics=[])
    yield _fixed("AllocateProducerIds", 0, broker_id=1, broker_epoch=0)


PROBES: Final = (
    *_data(),
    *_metadata(),
    *_groups(),
    *_transactions(),
    *_topics(),
    *_settings(),
    *_security(),
    *_brokers(),
)

#: Fields that identify the subject of a part of an answer; the first one that the part has counts.
_IDENTITY: Final = (
    "name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name", "user", "feature"
)  # fmt: skip
#: Fields that do not depend on permissions, or that concern another broker.
_LEFT_OUT: Final = frozenset(
    {"brokers", "configs", "node_endpoints", "api_keys", "records", "supported_features", "finalized_features"}
)
_ERRORS: Final = ("error_code", "topic_config_error_code", "partition_error_code")
_OPERATIONS: Final = ("topic_authorized_operations", "cluster_authorized_operations", "authorized_operations")


def decisions(response: Message, path: str = "") -> list[str]:
    """Return the authorization results in an answer, a line for each kind, in a stable order."""
    lines: list[str] = []
    for field in response.__wire__:
        value = getattr(response, field)
        if field in _ERRORS:
            if value:
                lines.append(f"{path}{field}={ErrorCode(value).name}")
        elif field in _OPERATIONS:
            if value not in (-(2**31), 0):
                lines.append(f"{path}{field}={value}")
        elif field not in _LEFT_OUT and isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    identity = next((getattr(each, name) for name in _IDENTITY if name in each.__wire__), None)
                    inner = f"{path}{field}" + (f"[{identity}]" if isinstance(identity, str) else "")
                    lines += decisions(each, f"{inner}.") or [inner]
    return sorted(set(lines))

"""The checks of `barnabas doctor --bootstrap-server` on a running cluster, ours or Apache's, through the protocol alone.

`look` asks the brokers; `examine` judges the answers and touches nothing, so a test can give it any cluster.
"""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.cli._doctor_file import is_loopback, nearly_full, room, short_lived
from barnabas.cli._doctor_finding import Finding, Severity, some
from barnabas.client.admin.configs import describe_configs
from barnabas.client.admin.partitions import describe_log_dirs, list_offsets
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError, error_code
from barnabas.client.image import Broker, ClusterImage, PartitionInfo
from barnabas.core.ids import TopicPartition
from barnabas.core.words import MAX_TIMESTAMP, ConfigResourceType

#: A doctor does not wait as long as a client would.
TIMEOUT_MS: Final = 5_000
#: Newer than our own clock by more than this: a clock is wrong.
SKEW_MS_MAX: Final = 2_000
#: Topics asked about in one request.
TOPICS_AT_ONCE: Final = 200
#: Their records carry the clock of the broker that leads them: the coordinator writes them.
COORDINATOR_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
#: Their replication factor is a setting of the brokers, and what waits while they cannot be made.
_INTERNAL: Final = {
    "offsets.topic.replication.factor": ("__consumer_offsets", "consumer groups wait"),
    "transaction.state.log.replication.factor": ("__transaction_state", "transactions wait"),
}


@dataclass(frozen=True, slots=True)
class DirView:
    path: str
    #: The name of an error; empty if it is online.
    error: str = ""
    #: -1 where the broker is too old to say.
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything that was asked for, at one moment."""

    image: ClusterImage
    now_ms: int = 0
    #: Why a broker's advertised address does not answer.
    unreachable: Mapping[int, str] = field(default_factory=dict)
    #: API key to version range, by broker.
    versions: Mapping[int, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    log_dirs: Mapping[int, tuple[DirView, ...]] = field(default_factory=dict)
    min_isr: Mapping[str, int] = field(default_factory=dict)
    #: The newest timestamp that the leader of a coordinator's partition has written.
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: `offsets.topic.replication.factor` and its kin, as a broker has them.
    internal_factors: Mapping[str, int] = field(default_factory=dict)
    #: Questions that stayed without an answer.
    refused: tuple[str, ...] = ()


# -- looking ------------------------------------------------------------------------------------------------------------


async def check_cluster(config: ClientConfig) -> tuple[list[Finding], int | None]:
    """The findings, and the number of brokers, if a broker answered."""
    patient = dataclasses.replace(
        config,
        connect_timeout_ms=min(config.connect_timeout_ms, TIMEOUT_MS),
        request_timeout_ms=min(config.request_timeout_ms, TIMEOUT_MS),
        api_timeout_ms=min(config.api_timeout_ms, 2 * TIMEOUT_MS),
    )
    async with Cluster(patient) as cluster:
        try:
            image = await cluster.refresh(None)
        except ClientError as error:
            where = ",".join(f"{host}:{port}" for host, port in config.bootstrap)
            advice = "start the brokers, or correct --bootstrap-server"
            return [Finding(Severity.ERROR, "bootstrap-unreachable", where, str(error), advice)], None
        return examine(await look(cluster, image)), len(image.brokers)


async def look(cluster: Cluster, image: ClusterImage) -> ClusterView:
    unreachable: dict[int, str] = {}
    versions: dict[int, dict[int, tuple[int, int]]] = {}
    log_dirs: dict[int, tuple[DirView, ...]] = {}
    refused: list[str] = []
    for broker_id in sorted(image.brokers):
        try:
            connection = await cluster.connection(broker_id)
        except ClientError as error:
            unreachable[broker_id] = str(error)
            continue
        versions[broker_id] = {key: (low, high) for key, (low, high) in connection.versions.apis.items()}
        try:
            log_dirs[broker_id] = tuple(
                DirView(
                    path=each.log_dir,
                    error=error_code(each.error_code).name if each.error_code else "",
                    total_bytes=each.total_bytes,
                    usable_bytes=each.usable_bytes,
                )
                for each in await describe_log_dirs(cluster, broker_id)
            )
        except ClientError as error:
            refused.append(f"log directories of broker {broker_id} ({error})")
    min_isr: dict[str, int] = {}
    newest_ms: dict[TopicPartition, int] = {}
    try:
        min_isr = await _min_isr(cluster, list(image.topics))
    except ClientError as error:
        refused.append(f"settings of topics ({error})")
    factors: dict[str, int] = {}
    try:
        factors = await _internal_factors(cluster, versions)
    except ClientError as error:
        refused.append(f"settings of brokers ({error})")
    try:
        newest_ms = await _newest(cluster, image, unreachable)
    except ClientError as error:
        refused.append(f"newest timestamps ({error})")
    return ClusterView(
        image=image,
        now_ms=time.time_ns() // 1_000_000,
        unreachable=unreachable,
        versions=versions,
        log_dirs=log_dirs,
        min_isr=min_isr,
        newest_ms=newest_ms,
        internal_factors=factors,
        refused=tuple(refused),
    )


async def _internal_factors(cluster: Cluster, reachable: Iterable[int]) -> dict[str, int]:
    """Of one broker: they are the same on all."""
    for broker_id in reachable:
        resource = (ConfigResourceType.BROKER, str(broker_id))
        entries = (await describe_configs(cluster, [resource]))[resource]
        return {entry.name: int(entry.value) for entry in entries if entry.name in _INTERNAL and entry.value}
    return {}


async def _min_isr(cluster: Cluster, topics: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        asked = [(ConfigResourceType.TOPIC, topic) for topic in topics[start : start + TOPICS_AT_ONCE]]
        for (_, topic), entries in (await describe_configs(cluster, asked)).items():
            for entry in entries:
                if entry.name == "min.insync.replicas" and entry.value is not None:
                    found[topic] = int(entry.value)
    return found


async def _newest(cluster: Cluster, image: ClusterImage, unreachable: Mapping[int, str]) -> dict[TopicPartition, int]:
    wanted = {
        partition: MAX_TIMESTAMP
        for partition, info in _partitions(image)
        if partition.topic in COORDINATOR_TOPICS and info.leader in image.brokers and info.leader not in unreachable
    }
    if not wanted:
        return {}
    listed = await list_offsets(cluster, wanted)
    return {partition: each.timestamp_ms for partition, each in listed.items() if not each.error}


def _partitions(image: ClusterImage) -> Iterable[tuple[TopicPartition, PartitionInfo]]:
    for name, topic in image.topics.items():
        for info in topic.partitions:
            yield TopicPartition(name, info.index), info


# -- judging ------------------------------------------------------------------------------------------------------------


def examine(view: ClusterView) -> list[Finding]:
    """What is wrong with a cluster."""
    return [
        *_brokers(view),
        *_versions(view),
        *_partition_states(view),
        *_replica_counts(view),
        *_internal_topics(view),
        *_disks(view),
        *_clocks(view),
        *(
            Finding(Severity.NOTE, "not-answered", "cluster", f"no answer about {what}", "ask again, or check the ACLs")
            for what in view.refused
        ),
    ]


def _internal_topics(view: ClusterView) -> list[Finding]:
    """They are made when they are first needed, and only where there are brokers enough."""
    alive = len(view.image.brokers)
    findings = []
    for setting, factor in view.internal_factors.items():
        topic, waits = _INTERNAL[setting]
        if topic not in view.image.topics and factor > alive:
            message = f"it cannot be made, and {waits}: {setting}={factor}, and {alive} brokers are alive"
            advice = f"start {factor} brokers, or set {setting}={alive} on every broker and restart it"
            findings.append(Finding(Severity.ERROR, "internal-topic-impossible", f"topic {topic}", message, advice))
    return findings


def _brokers(view: ClusterView) -> list[Finding]:
    findings = []
    for broker_id, reason in view.unreachable.items():
        broker = view.image.brokers[broker_id]
        message = f"its advertised address {broker.host}:{broker.port} does not answer: {reason}"
        advice = "is it running? If so, set advertised.listeners to an address that clients reach, and restart it"
        subject = f"broker {broker_id}"
        findings.append(Finding(Severity.ERROR, "advertised-listener-unreachable", subject, message, advice))
    by_address: dict[str, list[Broker]] = {}
    for broker in view.image.brokers.values():
        by_address.setdefault(f"{broker.host}:{broker.port}", []).append(broker)
    for address, several in by_address.items():
        if len(several) > 1:
            subject = f"brokers {some(broker.id for broker in several)}"
            advice = "give each its own in advertised.listeners: clients would confuse them"
            findings.append(
                Finding(Severity.ERROR, "advertised-listener-twice", subject, f"all advertise {address}", advice)
            )
    loopback = {is_loopback(broker.host) for broker in view.image.brokers.values()}
    if loopback == {True, False}:
        names = some(f"broker {b.id} ({b.host})" for b in view.image.brokers.values() if is_loopback(b.host))
        advice = "advertise names that every machine resolves to the same broker"
        message = f"some brokers advertise a loopback address and others do not: {names}"
        findings.append(Finding(Severity.WARNING, "advertised-listener-loopback", "cluster", message, advice))
    if view.image.controller_id not in view.image.brokers:
        message = "there is no controller: leaders are not elected, and topics are not created"
        advice = "see `get /controller` in zookeeper-shell and the brokers' logs; is ZooKeeper up?"
        findings.append(Finding(Severity.ERROR, "no-controller", "cluster", message, advice))
    return findings


def _versions(view: ClusterView) -> list[Finding]:
    groups: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = {}
    for broker_id, apis in view.versions.items():
        groups.setdefault(tuple(sorted(apis.items())), []).append(broker_id)
    if len(groups) < 2:
        return []
    message = "brokers serve different versions of the protocol: " + " | ".join(some(ids) for ids in groups.values())
    advice = "finish the upgrade (compare with barnabas broker-api-versions)"
    return [Finding(Severity.WARNING, "versions-differ", "cluster", message, advice)]


def _partition_states(view: ClusterView) -> list[Finding]:
    alive = view.image.brokers
    offline, behind, refusing = [], [], []
    for partition, info in _partitions(view.image):
        if info.leader not in alive:
            offline.append(partition)
        elif len(info.isr) < len(info.replicas):
            behind.append(partition)
        needed = view.min_isr.get(partition.topic, 1)
        if info.leader in alive and len(info.isr) < needed <= len(info.replicas):
            refusing.append(partition)
    missing = sorted({r for _, info in _partitions(view.image) for r in info.replicas if r not in alive})
    findings = []
    if offline:
        message = f"{len(offline)} partitions have no leader: {some(offline)}"
        advice = "start a broker of their last ISR" + (f" (missing: {some(missing)})" if missing else "")
        findings.append(Finding(Severity.ERROR, "partitions-offline", "cluster", message, advice))
    if refusing:
        message = f"{len(refusing)} partitions refuse acks=all, fewer than min.insync.replicas: {some(refusing)}"
        advice = "bring the missing replicas back" + (f" (brokers {some(missing)})" if missing else "")
        findings.append(Finding(Severity.ERROR, "partitions-under-min-isr", "cluster", message, advice))
    if behind:
        message = f"{len(behind)} partitions are under-replicated: {some(behind)}"
        if missing:
            advice = f"start broker {some(missing)}, or move its replicas with barnabas reassign-partitions"
        else:
            advice = "wait while followers catch up; if it stays, look at load, network and replica.lag.time.max.ms"
        findings.append(Finding(Severity.WARNING, "partitions-under-replicated", "cluster", message, advice))
    return findings


def _replica_counts(view: ClusterView) -> list[Finding]:
    findings = []
    single = []
    for name, topic in view.image.topics.items():
        if not topic.partitions:
            continue
        replicas = min(len(info.replicas) for info in topic.partitions)
        needed = view.min_isr.get(name, 1)
        if needed > replicas:
            message = f"min.insync.replicas={needed}, but it has {replicas} replicas: acks=all is always refused"
            advice = "lower it with barnabas configs, or add replicas with barnabas reassign-partitions"
            findings.append(Finding(Severity.ERROR, "min-isr-above-replicas", f"topic {name}", message, advice))
        if replicas > 1 or len(view.image.brokers) < 2:
            continue
        if topic.internal or name in COORDINATOR_TOPICS:
            message = "it has one replica: groups or transactions stop with the broker that has it"
            advice = "add replicas with barnabas reassign-partitions, and set the replication factor in every file"
            findings.append(Finding(Severity.WARNING, "internal-topic-replicas-one", f"topic {name}", message, advice))
        else:
            single.append(name)
    if single:
        message = f"{len(single)} topics have one replica: {some(sorted(single))}"
        advice = "their data goes with one broker; add replicas with barnabas reassign-partitions if it matters"
        findings.append(Finding(Severity.NOTE, "topic-replicas-one", "cluster", message, advice))
    return findings


def _disks(view: ClusterView) -> list[Finding]:
    findings = []
    for broker_id, directories in view.log_dirs.items():
        subject = f"broker {broker_id}"
        for each in directories:
            if each.error:
                message = f"log directory {each.path} is offline ({each.error})"
                advice = "look for the I/O error in its log, mend or replace the disk, and restart the broker"
                findings.append(Finding(Severity.ERROR, "log-dir-offline", subject, message, advice))
            elif nearly_full(each.total_bytes, each.usable_bytes):
                message = f"the disk of {each.path} has {room(each.total_bytes, each.usable_bytes)}"
                advice = "add room, lower retention, or move replicas: a full disk takes the directory offline"
                findings.append(Finding(Severity.WARNING, "disk-nearly-full", subject, message, advice))
            if short_lived(each.path):
                message = f"it keeps its data in {each.path}, which a reboot may empty"
                advice = "right for a cluster to try things out; else set log.dirs (barnabas up --data)"
                findings.append(Finding(Severity.NOTE, "log-dirs-in-tmp", subject, message, advice))
    return findings


def _clocks(view: ClusterView) -> list[Finding]:
    """The protocol tells no broker's time, but coordinators stamp their records with it: one from the future gives it away."""
    ahead: dict[int, int] = {}
    for partition, newest in view.newest_ms.items():
        info = view.image.partition(partition)
        if info is not None and newest - view.now_ms > SKEW_MS_MAX:
            ahead[info.leader] = max(ahead.get(info.leader, 0), newest - view.now_ms)
    return [
        Finding(
            Severity.WARNING,
            "clock-skew",
            f"broker {broker_id}",
            f"it leads records stamped {ms / 1000:.1f} s after this machine's time: a clock is wrong, or was",
            "run NTP (chrony) on every broker and here: retention and offset expiry go by these clocks",
        )
        for broker_id, ms in sorted(ahead.items())
    ]

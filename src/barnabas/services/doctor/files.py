"""The checks of `barnabas doctor FILE`: a broker's settings, and the machine that they are for.

`look` gathers facts about this machine; `examine` judges them without touching it, so that a test can describe any machine.
"""

import errno
import os
import re
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.listeners import Listener
from barnabas.base.config.usage import broker_notices
from barnabas.base.errors import ConfigError
from barnabas.base.hosts import address, is_loopback
from barnabas.broker.zookeeper_client.ensemble import members_of
from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.services.doctor.free_space import free_space, nearly_full, short_lived

#: Open files of a broker besides those of its logs: mostly sockets of clients.
FILES_BESIDES_LOGS: Final = 1024
#: Files that a partition keeps open: its segment and two indexes.
FILES_PER_PARTITION: Final = 3
PROBE_TIMEOUT_S: Final = 2.0
_PARTITION_FOLDER: Final = re.compile(r".+-\d+")


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    path: str
    #: Whether the folder, or the nearest existing one above it, can be written to.
    writable: bool
    total_bytes: int
    free_bytes: int
    partitions: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about this machine that concern the settings of one file."""

    log_dirs: tuple[LogDirFacts, ...] = ()
    open_files_max: int = 1 << 20
    #: By `host:port`: why an address cannot be used. Absent if it can be used, or if that is unknown.
    unreachable: Mapping[str, str] = field(default_factory=dict)


def read(path: str) -> tuple[BrokerConfig | None, list[Finding]]:
    """Return the settings in a file, or findings that say why a broker would not start with them."""
    from barnabas.base.config import properties

    try:
        config = BrokerConfig.parse(properties.load(path))
    except ConfigError as error:
        advice, means = "correct the setting that is named", "a broker does not start with this setting"
        return None, [Finding(Severity.ERROR, "settings-refused", path, str(error), advice, means)]
    return config, []


# -- looking ------------------------------------------------------------------------------------------------------------


def look(config: BrokerConfig) -> HostFacts:
    """Gather facts about this machine. Connects to the addresses in the file, for at most two seconds each."""
    unreachable: dict[str, str] = {}
    for advertised in config.advertised_listeners:
        reason = _why_unreachable(advertised, config.listener(advertised.name))
        if reason is not None:
            unreachable[address(advertised.host, advertised.port)] = reason
    for host, port in members_of(config.zookeeper_connect):
        reason = _probe(host, port)
        if reason is not None:
            unreachable[address(host, port)] = reason
    return HostFacts(
        log_dirs=tuple(_look_at_dir(path) for path in config.log_dirs),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        unreachable=unreachable,
    )


def _look_at_dir(path: str) -> LogDirFacts:
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    partitions = files = 0
    if Path(path).is_dir():
        folders = [entry for entry in os.scandir(path) if entry.is_dir() and _PARTITION_FOLDER.fullmatch(entry.name)]
        partitions = len(folders)
        files = sum(sum(1 for _ in os.scandir(folder)) for folder in folders)
    return LogDirFacts(
        path=path,
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        total_bytes=usage.total,
        free_bytes=usage.free,
        partitions=partitions,
        files=files,
    )


def _why_unreachable(advertised: Listener, bound: Listener | None) -> str | None:
    """Return why an address is unreachable. A refused connection means nothing while the broker is down: check its own port
    first."""
    if not advertised.host or not advertised.port:
        return None
    reason = _probe(advertised.host, advertised.port)
    if reason != os.strerror(errno.ECONNREFUSED):
        return reason
    here = bound.host if bound is not None and bound.host not in ("", "0.0.0.0", "::") else "localhost"
    is_running = bound is not None and bound.port and _probe(here, bound.port) is None
    return reason if is_running else None


def _probe(host: str, port: int) -> str | None:
    """Return why connecting fails, or None."""
    try:
        socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
    except socket.gaierror:
        return "the name does not resolve"
    except TimeoutError:
        return f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


# -- judging ------------------------------------------------------------------------------------------------------------


def examine(file: str, config: BrokerConfig, facts: HostFacts, *, brokers: int | None) -> list[Finding]:
    """Return the problems of one file. `brokers`: the size of the cluster, if known."""
    return [
        *_names(file, config),
        *_directories(file, facts),
        *_open_files(file, facts),
        *_replication(file, config, brokers),
        *_internal_topics(file, config, brokers),
        *_addresses(file, config, facts, brokers),
    ]


def examine_together(configs: Mapping[str, BrokerConfig]) -> list[Finding]:
    """Return the problems of files that are meant for one cluster."""
    findings: list[Finding] = []
    by_id: dict[int, list[str]] = {}
    for file, config in configs.items():
        if config.broker_id >= 0:
            by_id.setdefault(config.broker_id, []).append(file)
    for broker_id, files in by_id.items():
        if len(files) > 1:
            message = f"broker.id={broker_id} is in {len(files)} files"
            advice, means = "give each broker its own", "the second broker to start is refused"
            findings.append(Finding(Severity.ERROR, "broker-id-twice", ", ".join(files), message, advice, means))
    connects = sorted({config.zookeeper_connect for config in configs.values()})
    if len(connects) > 1:
        message = f"zookeeper.connect differs: {some(connects)}"
        advice = "brokers of one cluster name the same hosts and the same path"
        means = "they may form two clusters, and clients see one or the other"
        findings.append(Finding(Severity.WARNING, "zookeeper-differs", ", ".join(configs), message, advice, means))
    return findings


def _names(file: str, config: BrokerConfig) -> list[Finding]:
    findings = []
    for line in broker_notices(sorted(config.originals)):
        # Parsing adds the synonym of `broker.id`; the user did not write it.
        is_unknown = "is not a known setting" in line
        severity = Severity.WARNING if is_unknown else Severity.NOTE
        advice = (
            "correct the name or remove the line" if is_unknown else "remove the line, or leave it for Apache Kafka"
        )
        check = "setting-unknown" if is_unknown else "setting-without-effect"
        means = "the intended change has no effect" if is_unknown else ""
        findings.append(Finding(severity, check, file, line, advice, means))
    return findings


def _directories(file: str, facts: HostFacts) -> list[Finding]:
    findings = []
    for facts_of_dir in facts.log_dirs:
        path = facts_of_dir.path
        if short_lived(path):
            message = f"log.dirs={path} is in a place that a reboot may empty"
            advice = "name a folder on a disk of its own, such as /var/lib/kafka"
            means = "then records, offsets and the broker's identity are lost"
            findings.append(Finding(Severity.WARNING, "log-dirs-in-tmp", file, message, advice, means))
        if not facts_of_dir.writable:
            message = f"log.dirs={path} cannot be written to by this user"
            advice = "create the folder and give it to the user who runs the broker (mkdir, chown)"
            means = "the broker starts without this folder, or not at all"
            findings.append(Finding(Severity.ERROR, "log-dir-not-writable", file, message, advice, means))
        if nearly_full(facts_of_dir.total_bytes, facts_of_dir.free_bytes):
            message = f"the disk of log.dirs={path} has {free_space(facts_of_dir.total_bytes, facts_of_dir.free_bytes)}"
            advice = "add room, or lower log.retention.hours or log.retention.bytes"
            means = "a full disk takes the folder offline"
            findings.append(Finding(Severity.WARNING, "disk-nearly-full", file, message, advice, means))
    return findings


def _open_files(file: str, facts: HostFacts) -> list[Finding]:
    partitions = sum(each.partitions for each in facts.log_dirs)
    files = max(sum(each.files for each in facts.log_dirs), partitions * FILES_PER_PARTITION)
    needed = files + FILES_BESIDES_LOGS
    if facts.open_files_max >= needed:
        return []
    message = f"ulimit -n is {facts.open_files_max}, and {partitions} partitions with clients need about {needed}"
    advice = "raise it for the broker's user (ulimit -n 100000, or LimitNOFILE= of its systemd unit)"
    severity = Severity.ERROR if facts.open_files_max < files else Severity.WARNING
    means = "the broker runs out of descriptors: clients are refused, then logs cannot be opened"
    return [Finding(severity, "open-files-limit", file, message, advice, means)]


def _replication(file: str, config: BrokerConfig, brokers: int | None) -> list[Finding]:
    replicas, in_sync = config.default_replication_factor, config.min_insync_replicas
    findings = []
    if in_sync > replicas:
        message = f"min.insync.replicas={in_sync} is more than default.replication.factor={replicas}"
        advice = f"set default.replication.factor={in_sync + 1}"
        means = f"on a new topic it acts as {replicas}: records have fewer copies than it promises"
        findings.append(Finding(Severity.WARNING, "min-isr-above-replicas", file, message, advice, means))
    elif in_sync == replicas > 1:
        message = f"min.insync.replicas={in_sync} equals default.replication.factor"
        advice, means = f"set it to {replicas - 1}", "one broker that is down stops all writes with acks=all"
        findings.append(Finding(Severity.WARNING, "min-isr-equals-replicas", file, message, advice, means))
    if brokers is not None and brokers > 1 and replicas == 1:
        message = "default.replication.factor=1: topics that are created without a number have one copy"
        advice = f"set default.replication.factor={min(3, brokers)}"
        means = "their data is lost when one broker is lost"
        findings.append(Finding(Severity.WARNING, "default-replicas-one", file, message, advice, means))
    if config.unclean_leader_election_enable:
        message = "unclean.leader.election.enable=true lets a replica lead that lacks committed records"
        advice = "leave it false, and set it for single topics whose availability matters more than their data"
        means = "acknowledged records may be lost when a leader fails"
        findings.append(Finding(Severity.WARNING, "unclean-election", file, message, advice, means))
    return findings


def _internal_topics(file: str, config: BrokerConfig, brokers: int | None) -> list[Finding]:
    findings = []
    factors = {
        "offsets.topic.replication.factor": config.offsets_topic_replication_factor,
        "transaction.state.log.replication.factor": config.transaction_state_log_replication_factor,
    }
    for name, factor in factors.items():
        if factor == 1 and brokers != 1:
            message = f"{name}=1: the topic has one copy"
            means = "groups or transactions stop when the broker that has it fails"
            if brokers is None:
                advice = "fine for a single broker; set it to 3 before you add brokers"
                findings.append(Finding(Severity.NOTE, "internal-topic-replicas-one", file, message, advice, means))
            else:
                advice = (
                    f"set {name}={min(3, brokers)} before the topic is created; after that, use reassign-partitions"
                )
                findings.append(Finding(Severity.WARNING, "internal-topic-replicas-one", file, message, advice, means))
        if brokers is not None and factor > brokers:
            message = f"{name}={factor}, but the cluster has {count(brokers, 'broker')}: the topic cannot be created"
            advice, means = (
                f"set {name}={brokers}, or start more brokers",
                "consumer groups or transactions do not work",
            )
            findings.append(Finding(Severity.ERROR, "internal-topic-replicas-too-many", file, message, advice, means))
    in_sync, copies = config.transaction_state_log_min_isr, config.transaction_state_log_replication_factor
    if in_sync > copies:
        message = (
            f"transaction.state.log.min.isr={in_sync} is more than transaction.state.log.replication.factor={copies}"
        )
        advice = f"set transaction.state.log.min.isr={max(1, copies - 1)}"
        means = f"it acts as {copies}: transactions have fewer copies than it promises"
        findings.append(Finding(Severity.WARNING, "min-isr-above-replicas", file, message, advice, means))
    return findings


def _addresses(file: str, config: BrokerConfig, facts: HostFacts, brokers: int | None) -> list[Finding]:
    findings = []
    for listener in config.advertised_listeners:
        reason = facts.unreachable.get(address(listener.host, listener.port))
        if reason is not None:
            message = f"advertised.listeners names {listener}, which cannot be reached from here: {reason}"
            advice = "advertise a name or address, and a port, that clients and the other brokers can connect to"
            means = "clients that are sent to this address cannot connect"
            findings.append(Finding(Severity.ERROR, "advertised-listener-unreachable", file, message, advice, means))
        elif brokers is not None and brokers > 1 and is_loopback(listener.host):
            message = f"advertised.listeners names {listener}: other machines would connect to themselves"
            advice = "advertise this machine's name, unless all brokers and clients run on this one"
            findings.append(Finding(Severity.NOTE, "advertised-listener-loopback", file, message, advice))
    hosts = members_of(config.zookeeper_connect)
    reasons = {each: why for host, port in hosts if (why := facts.unreachable.get(each := address(host, port)))}
    if reasons:
        message = "zookeeper.connect: " + some(f"{address} ({reason})" for address, reason in reasons.items())
        advice = "start it (barnabas zookeeper, or Apache's), or correct zookeeper.connect"
        severity = Severity.ERROR if len(reasons) == len(hosts) else Severity.WARNING
        means = "a broker waits for zookeeper.connection.timeout.ms, and fails to start without it"
        findings.append(Finding(severity, "zookeeper-unreachable", file, message, advice, means))
    return findings


def check_files(paths: Sequence[str], *, brokers: int | None) -> list[Finding]:
    """Return the problems of these files: of each alone, then of all together."""
    findings: list[Finding] = []
    configs: dict[str, BrokerConfig] = {}
    for path in paths:
        config, refused = read(path)
        findings += refused
        if config is not None:
            configs[path] = config
    known = brokers if brokers is not None else (len(paths) if len(paths) > 1 else None)
    for path, config in configs.items():
        findings += examine(path, config, look(config), brokers=known)
    return [*findings, *examine_together(configs)]

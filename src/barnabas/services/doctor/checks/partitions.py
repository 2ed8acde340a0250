"""Partitions: leaders, in-sync replicas, and whether they accept writes. Pure."""

from barnabas.base.ids import TopicPartition
from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.services.doctor.view import ClusterView


def have_leaders(view: ClusterView) -> list[Finding]:
    offline = [partition for partition, info in view.partitions() if info.leader not in view.image.brokers]
    if not offline:
        return []
    missing = view.missing()
    return [
        Finding(
            Severity.ERROR,
            "partitions-offline",
            "cluster",
            f"{_have(offline)} no leader: {some(offline)}",
            "start a broker of their last ISR" + (f" (missing: {some(missing)})" if missing else ""),
            "they can be neither written nor read",
            view.changed_ms(offline),
        )
    ]


def take_writes(view: ClusterView) -> list[Finding]:
    refusing = [
        partition
        for partition, info in view.partitions()
        if info.leader in view.image.brokers
        and len(info.isr) < min(view.min_isr.get(partition.topic, 1), len(info.replicas))
    ]
    if not refusing:
        return []
    missing = view.missing()
    return [
        Finding(
            Severity.ERROR,
            "partitions-under-min-isr",
            "cluster",
            f"{_have(refusing)} fewer replicas in sync than min.insync.replicas: {some(refusing)}",
            "bring the missing replicas back" + (f" ({_named(missing)})" if missing else ""),
            "writes with acks=all are refused (NOT_ENOUGH_REPLICAS); reads go on",
            view.changed_ms(refusing),
        )
    ]


def have_all_replicas(view: ClusterView) -> list[Finding]:
    behind = [
        partition
        for partition, info in view.partitions()
        if info.leader in view.image.brokers and len(info.isr) < len(info.replicas)
    ]
    if not behind:
        return []
    missing = view.missing()
    if missing:
        advice = f"start {_named(missing)}, or move the replicas with barnabas reassign-partitions"
    else:
        advice = "wait while followers catch up; if it stays, look at load, network and replica.lag.time.max.ms"
    return [
        Finding(
            Severity.WARNING,
            "partitions-under-replicated",
            "cluster",
            f"{count(len(behind), 'partition')} under-replicated: {some(behind)}",
            advice,
            "no effect yet; but fewer brokers may fail before records are unavailable",
            view.changed_ms(behind),
        )
    ]


def _have(partitions: list[TopicPartition]) -> str:
    return f"{count(len(partitions), 'partition')} {'has' if len(partitions) == 1 else 'have'}"


def _named(brokers: list[int]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {some(brokers)}"

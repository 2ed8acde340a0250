"""Settings of brokers: those without effect, and those that should be equal."""

from typing import Final

from barnabas.base.config.usage import broker_notices
from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView

#: If brokers differ in one of these, the behaviour depends on which broker a client asks.
_SAME: Final = (
    "auto.create.topics.enable",
    "default.replication.factor",
    "delete.topic.enable",
    "inter.broker.protocol.version",
    "log.retention.hours",
    "log.retention.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offsets.retention.minutes",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "replica.lag.time.max.ms",
    "transaction.max.timeout.ms",
    "transaction.partition.verification.enable",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    "transaction.two.phase.commit.enable",
    "unclean.leader.election.enable",
    "zookeeper.connect",
)


def have_an_effect(view: ClusterView) -> list[Finding]:
    """Check barnabas brokers only: Apache's have another list of settings."""
    by_line: dict[str, list[int]] = {}
    for broker_id, broker in view.brokers.items():
        if not broker.is_ours:
            continue
        for line in broker_notices(sorted(broker.given)):
            by_line.setdefault(line, []).append(broker_id)
    findings = []
    for line, ids in by_line.items():
        subject = f"broker {some(ids)}" if len(ids) == 1 else f"brokers {some(ids)}"
        if "is not a known setting" in line:
            advice = "correct the name in the broker's file, or remove the line"
            means = "the intended change has no effect"
            findings.append(Finding(Severity.WARNING, "setting-unknown", subject, line, advice, means))
        else:
            advice = "remove it, or leave it for Apache Kafka"
            findings.append(Finding(Severity.NOTE, "setting-without-effect", subject, line, advice))
    return findings


def agree(view: ClusterView) -> list[Finding]:
    findings = []
    for name in _SAME:
        values: dict[str, list[int]] = {}
        for broker_id, broker in view.brokers.items():
            if name in broker.settings:
                values.setdefault(broker.settings[name], []).append(broker_id)
        if len(values) > 1:
            said = "; ".join(f"{value} on {some(ids)}" for value, ids in values.items())
            advice = "give it the same value in every broker's file"
            means = "the behaviour depends on which broker a client asks"
            findings.append(
                Finding(Severity.WARNING, "settings-differ", "cluster", f"{name} differs: {said}", advice, means)
            )
    return findings

"""Topics and their copies, especially internal ones. Pure."""

from typing import Final

from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.services.doctor.view import COORDINATOR_TOPICS, ClusterView

#: Internal topics, whose replication factor is a setting of the brokers: (topic, effect while it cannot be created, severity).
#: Nearly every cluster has groups; many have no transactions.
_INTERNAL: Final = {
    "offsets.topic.replication.factor": ("__consumer_offsets", "consumer groups do not work", Severity.ERROR),
    "transaction.state.log.replication.factor": (
        "__transaction_state",
        "transactions do not work; a cluster without transactions does not need it",
        Severity.WARNING,
    ),
}


def internal_topics_can_be_made(view: ClusterView) -> list[Finding]:
    """Internal topics are created when they are first needed, and only if there are enough brokers."""
    alive, down = len(view.image.brokers), view.missing()
    findings = []
    for setting, (topic, waits, severity) in _INTERNAL.items():
        factor = int(view.setting(setting) or 0)
        if topic not in view.image.topics and factor > alive:
            message = f"it cannot be created: {setting}={factor}, but {count(alive, 'broker')} alive"
            if factor <= alive + len(down):
                # The broker that is down has an error of its own.
                severity = Severity.WARNING if severity is Severity.ERROR else Severity.NOTE
                advice = f"start broker{'s' * (len(down) > 1)} {some(down)}"
            else:
                advice = (
                    f"start the brokers that are down. Only if the cluster is to have {count(alive, 'broker')} for good, set "
                    f"{setting}={alive} on every broker and restart it"
                )
            findings.append(Finding(severity, "internal-topic-impossible", f"topic {topic}", message, advice, waits))
    return findings


def internal_topics_are_compacted(view: ClusterView) -> list[Finding]:
    findings = []
    for name in COORDINATOR_TOPICS:
        policy = view.cleanup.get(name, "compact")
        if "compact" not in policy or "delete" in policy:
            message = f"cleanup.policy={policy}"
            advice = f"barnabas configs --alter --topic {name} --delete-config cleanup.policy"
            means = "committed offsets or transactions are deleted with old segments: groups lose their place"
            findings.append(
                Finding(Severity.ERROR, "internal-topic-not-compacted", f"topic {name}", message, advice, means)
            )
    return findings


def min_isr_can_be_met(view: ClusterView) -> list[Finding]:
    findings = []
    for name, topic in view.image.topics.items():
        replicas = min((len(info.replicas) for info in topic.partitions), default=0)
        needed = view.min_isr.get(name, 1)
        if replicas and needed > replicas:
            message = f"min.insync.replicas={needed}, but it has {count(replicas, 'replica')}"
            advice = "lower it with barnabas configs, or add replicas with barnabas reassign-partitions"
            # Kafka 3.7 and later, and barnabas: older ones refuse acks=all.
            means = f"it acts as {replicas}: acknowledged records have fewer copies than it promises"
            findings.append(
                Finding(Severity.WARNING, "min-isr-above-replicas", f"topic {name}", message, advice, means)
            )
    return findings


def have_copies(view: ClusterView) -> list[Finding]:
    if len(view.image.brokers) < 2:
        return []
    findings = []
    single = []
    for name, topic in view.image.topics.items():
        if min((len(info.replicas) for info in topic.partitions), default=2) > 1:
            continue
        if topic.internal or name in COORDINATOR_TOPICS:
            message = "it has one replica"
            advice = "add replicas with barnabas reassign-partitions, and set the replication factor in every file"
            means = "groups or transactions stop when the broker that has it fails"
            findings.append(
                Finding(Severity.WARNING, "internal-topic-replicas-one", f"topic {name}", message, advice, means)
            )
        else:
            single.append(name)
    if single:
        message = f"{count(len(single), 'topic')} with one replica: {some(sorted(single))}"
        advice = "add replicas with barnabas reassign-partitions if the data matters"
        means = "their data is lost when one broker is lost"
        findings.append(Finding(Severity.NOTE, "topic-replicas-one", "cluster", message, advice, means))
    return findings

"""Tiered storage: whether rolled segments are copied. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.services.doctor.view import ClusterView


def keeps_up(view: ClusterView) -> list[Finding]:
    """Brokers delete local segments only after they are copied: if copying is behind, disks fill."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for partition, tier in view.tiers.items():
        if tier.uncopied_bytes > view.limits.tier_segments * tier.segment_bytes:
            by_topic.setdefault(partition.topic, []).append((partition.partition, tier.uncopied_bytes))
    findings = []
    for topic, behind in by_topic.items():
        size = sum(each for _, each in behind)
        numbers = some(str(number) for number, _ in sorted(behind))
        message = f"about {size:,} bytes of {count(len(behind), 'partition')} ({numbers}) wait to be copied to the tier"
        advice = (
            "see the logs of their leaders: is the object store reachable, are its credentials good, is a quota set?"
        )
        means = "local retention waits for the copies: disks fill, and when they are full, writes fail"
        findings.append(Finding(Severity.WARNING, "tier-behind", f"topic {topic}", message, advice, means))
    return findings

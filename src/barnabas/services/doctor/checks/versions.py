"""Versions of brokers. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView


def agree(view: ClusterView) -> list[Finding]:
    groups: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = {}
    for broker_id, broker in view.brokers.items():
        if broker.versions:
            groups.setdefault(tuple(sorted(broker.versions.items())), []).append(broker_id)
    if len(groups) < 2:
        return []
    message = "brokers serve different versions of the protocol: " + " | ".join(some(ids) for ids in groups.values())
    advice = "finish the upgrade (compare with barnabas broker-api-versions)"
    means = "clients use the versions of the broker that they are connected to; new features stay off"
    return [Finding(Severity.WARNING, "versions-differ", "cluster", message, advice, means)]

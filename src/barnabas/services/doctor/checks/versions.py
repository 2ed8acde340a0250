"""Versions and features of brokers. Pure."""

from barnabas.base.words import SHARE_VERSION, STREAMS_VERSION
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


def serve_share_groups(view: ClusterView) -> list[Finding]:
    """Report that brokers refuse share groups (KIP-932). A cluster without barnabas brokers need not have them."""
    means = "share consumers are refused with UNSUPPORTED_VERSION; those of librdkafka wait and report nothing"
    return _refused(view, SHARE_VERSION, "share groups", "share-groups-refused", means)


def serve_streams_groups(view: ClusterView) -> list[Finding]:
    """Report that brokers refuse streams groups (KIP-1071), in the same way."""
    means = "applications of Kafka Streams with group.protocol=streams stop with UNSUPPORTED_VERSION"
    return _refused(view, STREAMS_VERSION, "streams groups", "streams-groups-refused", means)


def _refused(view: ClusterView, feature: str, what: str, name: str, means: str) -> list[Finding]:
    refusing = [id for id, each in view.brokers.items() if each.is_ours and feature not in each.finalized]
    if not refusing:
        return []
    without = [broker_id for broker_id, broker in view.brokers.items() if feature not in broker.features]
    unknown = [broker_id for broker_id in view.unreachable if broker_id not in view.brokers]
    reasons = [f"{words}: {some(ids)}" for words, ids in (("not on", without), ("no answer from", unknown)) if ids]
    message = f"{what} are refused, because not every broker has the feature {feature}"
    if reasons:
        message += f" ({'; '.join(reasons)})"
    advice = "replace the brokers that do not have it by barnabas brokers of the newest release"
    return [Finding(Severity.WARNING, name, "cluster", message, advice, means)]

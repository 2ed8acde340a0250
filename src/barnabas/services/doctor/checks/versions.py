"""Versions and features of brokers. Pure."""

from typing import Final

from barnabas.base.words import SHARE_VERSION, STREAMS_VERSION
from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView

_REPLACE_OLD: Final = "replace the brokers that do not have it by barnabas brokers of the newest release"


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
    message = _refused(view, SHARE_VERSION, "share groups")
    if message is None:
        return []
    means = "share consumers are refused with UNSUPPORTED_VERSION; those of librdkafka wait and report nothing"
    return [Finding(Severity.WARNING, "share-groups-refused", "cluster", message, _REPLACE_OLD, means)]


def serve_streams_groups(view: ClusterView) -> list[Finding]:
    """Report that brokers refuse streams groups (KIP-1071), in the same way."""
    message = _refused(view, STREAMS_VERSION, "streams groups")
    if message is None:
        return []
    means = "applications of Kafka Streams with group.protocol=streams stop with UNSUPPORTED_VERSION"
    return [Finding(Severity.WARNING, "streams-groups-refused", "cluster", message, _REPLACE_OLD, means)]


def _refused(view: ClusterView, feature: str, what: str) -> str | None:
    """Return which brokers are the reason that a kind of groups is refused; None: it is not."""
    refusing = [id for id, each in view.brokers.items() if each.is_ours and feature not in each.finalized]
    if not refusing:
        return None
    without = [broker_id for broker_id, broker in view.brokers.items() if feature not in broker.features]
    unknown = [broker_id for broker_id in view.unreachable if broker_id not in view.brokers]
    reasons = [f"{words}: {some(ids)}" for words, ids in (("not on", without), ("no answer from", unknown)) if ids]
    message = f"{what} are refused, because not every broker has the feature {feature}"
    return f"{message} ({'; '.join(reasons)})" if reasons else message

"""The checks of a cluster: each is a pure function from the observed facts to findings, one file per subject."""

from collections.abc import Callable
from typing import Final

from barnabas.services.doctor.checks import (
    brokers,
    certificates,
    clients,
    clocks,
    controller,
    disks,
    groups,
    neighbours,
    partitions,
    settings,
    tier,
    topics,
    transactions,
    versions,
    zookeeper,
)
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView

Check = Callable[[ClusterView], list[Finding]]

#: In the order in which an operator would look.
CHECKS: Final[tuple[Check, ...]] = (
    zookeeper.members_serve,
    zookeeper.reachable,
    zookeeper.answers_soon,
    zookeeper.disk,
    controller.one_that_all_know,
    brokers.are_up,
    brokers.answer,
    neighbours.reach_each_other,
    brokers.have_own_addresses,
    brokers.registered_as_they_say,
    partitions.have_leaders,
    partitions.take_writes,
    partitions.have_all_replicas,
    topics.min_isr_can_be_met,
    topics.internal_topics_can_be_made,
    topics.internal_topics_are_compacted,
    topics.have_copies,
    disks.log_dirs,
    tier.keeps_up,
    neighbours.answer_soon,
    clocks.agree,
    transactions.end,
    groups.settle,
    groups.keep_up,
    zookeeper.closed_to_strangers,
    certificates.certificates_last,
    certificates.tokens_last,
    settings.have_an_effect,
    settings.agree,
    clients.slow,
    clients.retry,
    clients.throttled,
    clients.old,
    versions.agree,
    versions.serve_share_groups,
    versions.serve_streams_groups,
)


def examine(view: ClusterView) -> list[Finding]:
    """Return everything that is wrong with a cluster, or worth knowing."""
    unanswered = [
        Finding(Severity.NOTE, "not-answered", "cluster", f"no answer about {what}", "ask again, or check the ACLs")
        for what in view.refused
    ]
    return [finding for check in CHECKS for finding in check(view)] + unanswered

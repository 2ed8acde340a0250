"""Clients that push their metrics (KIP-714): those that are slow, and why, that retry, are throttled, or are old. Pure."""

import re
from typing import Final

from barnabas.client.pushing import PushingClient
from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView, Limits
from barnabas.wire.versions import PRODUCE

_PREFIX: Final = "org.apache.kafka."
#: Mean time of a producer's requests, by the node that they go to.
LATENCY: Final = f"{_PREFIX}producer.node.request.latency.avg"
QUEUE_TIME: Final = f"{_PREFIX}producer.record.queue.time.avg"
COMMIT_LATENCY: Final = f"{_PREFIX}consumer.coordinator.commit.latency.avg"
#: The share of its time that a consumer's application leaves to `poll`.
IDLE_RATIO: Final = f"{_PREFIX}consumer.poll.idle.ratio.avg"
THROTTLED: Final = (
    f"{_PREFIX}producer.produce.throttle.time.avg",
    f"{_PREFIX}consumer.fetch.manager.fetch.throttle.time.avg",
)
RETRY_RATE: Final = f"{_PREFIX}producer.record.retry.rate"
ERROR_RATE: Final = f"{_PREFIX}producer.record.error.rate"
#: The metrics that the checks read.
METRICS: Final = (LATENCY, QUEUE_TIME, COMMIT_LATENCY, IDLE_RATIO, *THROTTLED, RETRY_RATE, ERROR_RATE)

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def name_of(client: PushingClient) -> str:
    return f"client {client.client_id or client.instance_id} at {client.address}"


def why_slow(client: PushingClient, limits: Limits) -> list[str]:
    """Return the reasons why a client is slow; none if it is not."""
    reasons = []
    latency_ms = request_latency_ms(client)
    if latency_ms is not None and latency_ms > limits.client_latency_ms:
        reasons.append(f"its requests take {latency_ms:.0f} ms{_beside(client, latency_ms)}")
    queue_ms = max(client.values(QUEUE_TIME), default=0.0)
    if queue_ms > limits.client_queue_ms:
        reasons.append(f"its records wait {queue_ms:.0f} ms in its own queue: it sends less than it is given")
    commit_ms = max(client.values(COMMIT_LATENCY), default=0.0)
    if commit_ms > limits.client_latency_ms:
        reasons.append(f"its commits take {commit_ms:.0f} ms")
    idle = list(client.values(IDLE_RATIO))
    # 0 is what consumers report before they have polled for a while.
    if idle and 0 < max(idle) < limits.client_idle_share:
        reasons.append(f"its application works {1 - max(idle):.0%} of the time between two polls: it is the bottleneck")
    return reasons


def request_latency_ms(client: PushingClient) -> float | None:
    """Return the mean time of a producer's requests, to the broker that it pushes to if that is known."""
    by_node = client.metrics.get(LATENCY, {})
    own = [value for labels, value in by_node.items() if ("node_id", str(client.broker_id)) in labels]
    return max(own or by_node.values(), default=None)


def _beside(client: PushingClient, latency_ms: float) -> str:
    times = client.broker_times.get(PRODUCE)
    if times is None or not times.count:
        return ""
    seen = f"; broker {client.broker_id} takes {times.mean_ms:.0f} ms of it"
    if times.mean_ms < latency_ms / 2:
        return f"{seen}: the network or the client's machine is slow"
    if times.waiting_ms > times.total_ms / 2:
        return f"{seen}, most of it waiting for replicas"
    return f"{seen}: the broker is slow"


def slow(view: ClusterView) -> list[Finding]:
    return [
        Finding(
            Severity.WARNING,
            "client-slow",
            name_of(client),
            "; ".join(reasons),
            "compare with other clients: barnabas client-metrics --clients",
            "its records come late",
        )
        for client in view.clients
        if not client.is_ended and (reasons := why_slow(client, view.limits))
    ]


def retry(view: ClusterView) -> list[Finding]:
    findings = []
    for client in view.clients:
        retries, errors = (max(client.values(name), default=0.0) for name in (RETRY_RATE, ERROR_RATE))
        if client.is_ended or retries + errors <= 0:
            continue
        message = f"it sends {retries:.1f} records a second again, and {errors:.1f} fail"
        advice = "look for partitions without leaders or under min.insync.replicas, and into the client's log"
        means = "its records come late, or not at all"
        findings.append(Finding(Severity.WARNING, "client-retries", name_of(client), message, advice, means))
    return findings


def throttled(view: ClusterView) -> list[Finding]:
    findings = []
    for client in view.clients:
        throttled_ms = max(client.values(*THROTTLED), default=0.0)
        if client.is_ended or throttled_ms <= 0:
            continue
        message = f"a quota holds its requests back for {throttled_ms:.0f} ms on average"
        advice = "raise its quota, or let it send less: barnabas configs --describe --entity-type clients"
        means = "it waits after each answer"
        findings.append(Finding(Severity.WARNING, "client-throttled", name_of(client), message, advice, means))
    return findings


def old(view: ClusterView) -> list[Finding]:
    """Report clients whose software is a major version older than that of another client."""
    newest: dict[str, tuple[int, str]] = {}
    for client in view.clients:
        found = _VERSION.match(client.software_version)
        if found is not None:
            newest[client.software_name] = max(
                newest.get(client.software_name, (0, "")), (int(found[1]), client.software_version)
            )
    behind: dict[tuple[str, str], list[PushingClient]] = {}
    for client in view.clients:
        found = _VERSION.match(client.software_version)
        if found is not None and int(found[1]) < newest[client.software_name][0]:
            behind.setdefault((client.software_name, client.software_version), []).append(client)
    return [
        Finding(
            Severity.NOTE,
            "client-old",
            f"{name} {version}",
            f"{some(sorted({each.client_id or each.instance_id for each in clients}))} still run it; others run "
            f"{newest[name][1]}",
            "upgrade them when convenient",
        )
        for (name, version), clients in sorted(behind.items())
    ]

"""Brokers: whether they answer at their advertised addresses, and whether ZooKeeper agrees with the metadata. Pure."""

from barnabas.base.hosts import is_loopback
from barnabas.client.image import Broker
from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.services.doctor.view import ClusterView


def are_up(view: ClusterView) -> list[Finding]:
    """Find brokers that hold replicas but are not in the cluster: the cause of most problems with partitions."""
    findings = []
    cut_off = {broker_id for broker_id, away_ms in view.strangers().items() if away_ms is not None}
    for broker_id in view.missing():
        if broker_id in cut_off:
            continue  # it runs: see `zookeeper.reachable`
        held = [partition for partition, info in view.partitions() if broker_id in info.replicas]
        message = f"it is down: it holds a replica of {count(len(held), 'partition')}, but is not registered"
        advice = (
            "start it (its log says why it ended). If it will not come back, move its replicas with "
            "barnabas reassign-partitions"
        )
        means = "fewer copies of these partitions; the findings below show what does not work because of it"
        findings.append(
            Finding(Severity.ERROR, "broker-down", f"broker {broker_id}", message, advice, means, view.changed_ms(held))
        )
    return findings


def answer(view: ClusterView) -> list[Finding]:
    findings = []
    for broker_id, reason in view.unreachable.items():
        broker = view.image.brokers[broker_id]
        message = f"its advertised address {broker.host}:{broker.port} does not answer: {reason}"
        advice = "is it running? If so, set advertised.listeners to an address that clients reach, and restart it"
        means = "clients cannot use the partitions that it leads"
        views = [each.neighbours[broker_id] for each in view.brokers.values() if broker_id in each.neighbours]
        if views and all(each.is_untrusted for each in views):
            continue  # it runs, and refuses all logins: see `neighbours.reach_each_other`
        reach, fail = _others_view(view, broker_id)
        if reach and not fail:
            message += f"; brokers {some(reach)} reach it"
            advice = (
                "it runs: look at the network between clients and it (firewall, routes); is advertised.listeners an address "
                "that clients reach?"
            )
        elif fail and not reach:
            message += f"; brokers {some(fail)} do not reach it either"
            advice = "is it running? If so, look at its network; a restart does not help then"
        findings.append(
            Finding(Severity.ERROR, "advertised-listener-unreachable", f"broker {broker_id}", message, advice, means)
        )
    for broker_id, seen in view.brokers.items():
        if seen.confusion:
            broker = view.image.brokers[broker_id]
            message = f"another broker answers at its advertised address {broker.host}:{broker.port}: {seen.confusion}"
            advice = "correct advertised.listeners of the one that is wrong, and restart it"
            means = "clients ask the wrong broker (NOT_LEADER_OR_FOLLOWER), again and again"
            findings.append(
                Finding(Severity.ERROR, "advertised-listener-of-another", f"broker {broker_id}", message, advice, means)
            )
    return findings


def _others_view(view: ClusterView, broker_id: int) -> tuple[list[int], list[int]]:
    """Return the brokers that reach this one, and those that do not."""
    seen = {each: other.neighbours[broker_id] for each, other in view.brokers.items() if broker_id in other.neighbours}
    return (
        [each for each, neighbour in seen.items() if neighbour.failing_ms is None],
        [each for each, neighbour in seen.items() if neighbour.failing_ms is not None],
    )


def have_own_addresses(view: ClusterView) -> list[Finding]:
    findings = []
    by_address: dict[str, list[Broker]] = {}
    for broker in view.image.brokers.values():
        by_address.setdefault(f"{broker.host}:{broker.port}", []).append(broker)
    for address, several in by_address.items():
        if len(several) > 1:
            subject = f"brokers {some(broker.id for broker in several)}"
            advice = "give each its own in advertised.listeners"
            means = "clients confuse them"
            findings.append(
                Finding(Severity.ERROR, "advertised-listener-twice", subject, f"all advertise {address}", advice, means)
            )
    loopback = {is_loopback(broker.host) for broker in view.image.brokers.values()}
    if loopback == {True, False}:
        names = some(f"broker {b.id} ({b.host})" for b in view.image.brokers.values() if is_loopback(b.host))
        advice = "advertise names that every machine resolves to the same broker"
        message = f"some brokers advertise a loopback address and others do not: {names}"
        means = "clients on other machines connect to themselves"
        findings.append(Finding(Severity.WARNING, "advertised-listener-loopback", "cluster", message, advice, means))
    return findings


def registered_as_they_say(view: ClusterView) -> list[Finding]:
    """Compare ZooKeeper's registrations with the controller's metadata and with the settings."""
    seen = view.zookeeper
    if seen is None or seen.trouble:
        return []
    findings = []
    for broker_id in sorted(set(view.image.brokers) - set(seen.registrations)):
        message = "it is in the metadata, but not registered in ZooKeeper"
        advice = "its session ended, or the controller is behind; see its log, and restart it if it stays"
        means = "its leaders are about to move, or already have"
        findings.append(
            Finding(Severity.WARNING, "broker-not-registered", f"broker {broker_id}", message, advice, means)
        )
    for broker_id in sorted(set(seen.registrations) - set(view.image.brokers)):
        message = "it is registered in ZooKeeper, but the metadata does not have it"
        advice = "the controller has not announced it yet; if this stays, see the controller's log"
        means = "clients do not see it, and it leads nothing"
        findings.append(
            Finding(Severity.WARNING, "broker-not-in-metadata", f"broker {broker_id}", message, advice, means)
        )
    for broker_id, broker in view.image.brokers.items():
        registered = seen.registrations.get(broker_id, ())
        address = f"{broker.host}:{broker.port}"
        if registered and not any(each.partition("://")[2] == address for each in registered):
            message = f"clients are sent to {address}, but it registered {some(registered)}"
            advice = "the metadata is old, or /brokers/ids was edited by hand: restart the broker"
            means = "clients connect to the wrong place"
            findings.append(
                Finding(Severity.WARNING, "registration-differs", f"broker {broker_id}", message, advice, means)
            )
    return findings

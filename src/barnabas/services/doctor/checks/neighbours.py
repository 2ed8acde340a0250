"""The network between brokers, as they see it themselves. Pure."""

from collections.abc import Collection, Iterable
from typing import Final

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView, NeighbourView

_MEANS: Final = (
    "replicas do not follow their leaders: writes with acks=all wait, and are refused when fewer than min.insync.replicas "
    "are in sync"
)
#: A broker, and another one that it sees.
Pair = tuple[int, int]


def reach_each_other(view: ClusterView) -> list[Finding]:
    """Find brokers that cannot reach each other, in one direction or both, although both run."""
    failing = {
        pair: seen
        for pair, seen in _pairs(view).items()
        # `brokers.answer` reports brokers that the doctor does not reach either, unless the reason is a refused login.
        if seen.failing_ms is not None and (seen.is_untrusted or pair[1] not in view.unreachable)
    }
    if not failing:
        return []
    common = _in_all(failing, view)
    # Without a broker that all have in common, either side of a pair may be to blame.
    subject = f"broker {common}" if common is not None else _named({each for pair in failing for each in pair}, None)
    message = "; ".join(_sentence(broker, failing, common) for broker in sorted({a for a, _ in failing}))
    since_ms = view.now_ms - max(seen.failing_ms or 0 for seen in failing.values())
    if all(seen.is_untrusted for seen in failing.values()):
        advice = (
            "compare the credentials for other brokers (sasl.jaas.config, or the key store and trust store) with what the "
            "refusing broker accepts, and correct them on the one that changed last"
        )
        return [Finding(Severity.ERROR, "broker-login-refused", subject, message, advice, _MEANS, since_ms)]
    advice = (
        "both run: look at the network between them (firewall, routes, names) on the inter-broker listener; "
        "a restart does not help"
    )
    return [Finding(Severity.ERROR, "brokers-cannot-reach-each-other", subject, message, advice, _MEANS, since_ms)]


def answer_soon(view: ClusterView) -> list[Finding]:
    limit_ms = view.limits.neighbour_ms
    slow = {
        pair: seen.round_trip_ms
        for pair, seen in _pairs(view).items()
        if seen.failing_ms is None and seen.round_trip_ms is not None and seen.round_trip_ms > limit_ms
    }
    if not slow:
        return []
    common = _in_all(slow, view)
    involved = {broker for pair in slow for broker in pair}
    subject = f"broker {common}" if common is not None else "brokers " + some(sorted(involved))
    others = f" between it and brokers {some(sorted(involved - {common}))}" if common is not None else ""
    message = f"a request{others} takes {max(slow.values())} ms to be answered"
    advice = "look at the network between them (ping); if it is fast, one of these brokers is busy (barnabas_event_loop_lag_ms)"
    means = "writes with acks=all, and elections of leaders, take at least this long"
    return [Finding(Severity.WARNING, "brokers-answer-late", subject, message, advice, means)]


def _pairs(view: ClusterView) -> dict[Pair, NeighbourView]:
    return {
        (broker, other): seen
        for broker, each in view.brokers.items()
        for other, seen in each.neighbours.items()
        if other in view.image.brokers
    }


def _in_all(pairs: Collection[Pair], view: ClusterView) -> int | None:
    """Return the broker that all these pairs have in common, if there is one such and a third broker to tell which it is."""
    common = set.intersection(*(set(pair) for pair in pairs))
    involved = {broker for pair in pairs for broker in pair}
    if len(common) != 1 or len(involved) < min(3, len(view.image.brokers)):
        return None
    return common.pop()


def _sentence(broker: int, failing: dict[Pair, NeighbourView], subject: int | None) -> str:
    seen = {other: each for (a, other), each in failing.items() if a == broker}
    source = "it" if broker == subject else f"broker {broker}"
    reason = next(iter(seen.values())).reason
    return f"{source} cannot reach {_named(seen, subject)} ({reason})"


def _named(brokers: Iterable[int], subject: int | None) -> str:
    names = sorted(brokers)
    if names == [subject]:
        return "it"
    return f"broker{'s' * (len(names) > 1)} {some(names)}"

"""The controller: is there one, and do all mean the same? Pure."""

from barnabas.doctor.finding import Finding, Severity, some
from barnabas.doctor.view import ClusterView


def one_that_all_know(view: ClusterView) -> list[Finding]:
    if view.image.controller_id not in view.image.brokers:
        message = "there is no controller"
        advice = "see `get /controller` in zookeeper-shell and the brokers' logs; is ZooKeeper up?"
        means = "leaders are not elected, and topics are not created"
        return [Finding(Severity.ERROR, "no-controller", "cluster", message, advice, means)]
    opinions: dict[int, list[str]] = {}
    for broker, each in view.brokers.items():
        if each.controller_id is not None:
            opinions.setdefault(each.controller_id, []).append(f"broker {broker}")
    if view.zookeeper is not None and view.zookeeper.controller_id is not None:
        opinions.setdefault(view.zookeeper.controller_id, []).append("ZooKeeper")
    if len(opinions) < 2:
        return []
    said = "; ".join(f"{some(who)}: {controller}" for controller, who in sorted(opinions.items()))
    message = f"not all name the same controller ({said})"
    advice = (
        "ask again in a moment; if it stays, a broker does not hear from the controller: see its log and its network"
    )
    means = "brokers that are behind send clients to old leaders"
    return [Finding(Severity.WARNING, "controller-disputed", "cluster", message, advice, means)]

"""The controller: whether there is one, and whether all brokers know it. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView


def one_that_all_know(view: ClusterView) -> list[Finding]:
    if reason := _why_none(view):
        message = f"there is no controller: {reason}"
        advice = (
            "ask again in a moment: an election takes less than a second; if it stays, see the brokers' logs, and "
            "/controller in zookeeper-shell: brokers elect one as soon as it is deleted"
        )
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
    said = "; ".join(f"{some(brokers)}: {controller}" for controller, brokers in sorted(opinions.items()))
    message = f"brokers name different controllers ({said})"
    advice = (
        "ask again in a moment; if it stays, a broker does not hear from the controller: see its log and its network"
    )
    means = "brokers that are behind send clients to old leaders"
    return [Finding(Severity.WARNING, "controller-disputed", "cluster", message, advice, means)]


def _why_none(view: ClusterView) -> str:
    """Empty if there is a controller. Brokers still name the last one they knew: ZooKeeper decides, if it could be read."""
    named = view.image.controller_id
    if named not in view.image.brokers:
        return "brokers name none" if named < 0 else f"brokers name broker {named}, which is not in the cluster"
    seen = view.zookeeper
    if seen is None or seen.controller_id is None:
        return ""
    if seen.controller_id < 0:
        return "ZooKeeper has no /controller"
    if seen.controller_id not in seen.registrations:
        return f"/controller in ZooKeeper names broker {seen.controller_id}, which is not registered"
    return ""

"""ZooKeeper: whether brokers reach it, how fast it answers, and whether its disk has space. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from barnabas.base.times import time_in
from barnabas.base.znode_path import closing_command
from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.free_space import free_space, nearly_full
from barnabas.services.doctor.view import ClusterView, MemberView

#: Brokers ask a member every ten seconds, each at its own time: within this time some have not noticed yet.
MEMBER_ROUND_MS: Final = 15_000
_MEANS: Final = (
    "partitions with a leader work; no leader is elected when a broker fails, and topics, settings, ACLs and users "
    "cannot be changed"
)


def members_serve(view: ClusterView) -> list[Finding]:
    """Judge the members of the ensemble by what the brokers see of each; a broker that reaches none of them is left out."""
    seen = _members(view)
    failing = {
        name: views for name, views in seen.items() if any(each.failing_ms is not None for each in views.values())
    }
    dead = [name for name, views in failing.items() if all(each.failing_ms is not None for each in views.values())]
    if _is_majority_lost(view):
        return [_lost_majority(view, {name: failing[name] for name in dead}, len(seen))]
    findings = [_member_fails(view, name, views) for name, views in failing.items()]
    for name, views in seen.items():
        if name not in failing and any(each.is_behind for each in views.values()):
            message = "it lacks transactions that the others had ten seconds ago"
            advice = "look at its disk (fsync), its load, and the network between it and the leader (`Mode` of `srvr`)"
            means = "brokers whose session is at this member hear of changes late"
            findings.append(
                Finding(Severity.WARNING, "zookeeper-member-behind", f"ZooKeeper's {name}", message, advice, means)
            )
    return findings


def _members(view: ClusterView) -> dict[str, dict[int, MemberView]]:
    """By address: the views of the brokers that see any member serve, or of all if there is none."""
    asked = {broker: each.members for broker, each in view.brokers.items() if each.members}
    useful = {
        broker: members
        for broker, members in asked.items()
        if any(each.failing_ms is None or each.is_up for each in members.values())
    } or asked
    found: dict[str, dict[int, MemberView]] = {}
    for broker, members in useful.items():
        for name, each in members.items():
            found.setdefault(name, {})[broker] = each
    return found


def _is_majority_lost(view: ClusterView) -> bool:
    seen = _members(view)
    dead = [views for views in seen.values() if all(each.failing_ms is not None for each in views.values())]
    return bool(seen) and len(dead) * 2 >= len(seen)


def _lost_majority(view: ClusterView, dead: Mapping[str, Mapping[int, MemberView]], number: int) -> Finding:
    gone = {name: views for name, views in dead.items() if not any(each.is_up for each in views.values())}
    message = f"it has no majority: {len(gone) or len(dead)} of {number} members do not answer ("
    message += "; ".join(f"{name}: {next(iter(views.values())).reason}" for name, views in (gone or dead).items()) + ")"
    advice = (
        "start these members, or mend the network between the members; brokers register again by themselves. Do not restart "
        "brokers: they could not register"
    )
    since_ms = view.now_ms - max(each.failing_ms or 0 for views in (gone or dead).values() for each in views.values())
    return Finding(Severity.ERROR, "zookeeper-no-majority", _where(view), message, advice, _MEANS, since_ms)


def _member_fails(view: ClusterView, name: str, views: Mapping[int, MemberView]) -> Finding:
    failing = {broker: each for broker, each in views.items() if each.failing_ms is not None}
    since_ms = view.now_ms - max(each.failing_ms or 0 for each in failing.values())
    reason = next(iter(failing.values())).reason
    if len(failing) < len(views) and min(each.failing_ms or 0 for each in failing.values()) > MEMBER_ROUND_MS:
        reached_by = some(sorted(set(views) - set(failing)))
        message = f"brokers {some(sorted(failing))} do not reach it ({reason}); brokers {reached_by} do"
        advice = "look at the network between them; the member itself works"
        means = "these brokers lose time, and may lose their session, when they must change to another member"
    elif any(each.is_up for each in failing.values()):
        message = reason
        advice = "mend the network between this member and the others, or start it again; leave the others alone"
        means = "the ensemble works, but without this member it may not lose another one"
    else:
        message = f"it does not answer: {reason}"
        advice = "start it again, or mend the network to its host; leave the others and the brokers alone"
        means = "the ensemble works, but without this member it may not lose another one"
    return Finding(Severity.WARNING, "zookeeper-member-down", f"ZooKeeper's {name}", message, advice, means, since_ms)


def _where(view: ClusterView) -> str:
    return f"ZooKeeper at {view.zookeeper.connect if view.zookeeper is not None else 'zookeeper.connect'}"


def reachable(view: ClusterView) -> list[Finding]:
    cut_off = {broker: each.zookeeper_trouble for broker, each in view.brokers.items() if each.zookeeper_trouble}
    where = view.zookeeper.connect if view.zookeeper is not None else "zookeeper.connect"
    outside = {broker: away_ms for broker, away_ms in view.strangers().items() if away_ms is not None}
    if outside or 0 < len(cut_off) < len(view.brokers):
        return _some_are_cut_off(view, where, cut_off, outside)
    if cut_off and _is_majority_lost(view):
        return []  # `members_serve` reports it
    if cut_off:
        message = f"no broker reaches it: {next(iter(cut_off.values()))}"
        advice = "start ZooKeeper, or repair the network to it; brokers register again by themselves"
        subject = f"ZooKeeper at {where}"
        return [
            Finding(
                Severity.ERROR, "zookeeper-unreachable", subject, message, advice, _MEANS, _since_ms(cut_off.values())
            )
        ]
    if view.zookeeper is not None and view.zookeeper.trouble:
        reached = any(each.zookeeper_ms >= 0 for each in view.brokers.values())
        message = f"the doctor cannot ask it: {view.zookeeper.trouble}"
        if reached:
            advice = "the brokers reach it; run doctor on a broker's machine to compare what is registered"
            return [Finding(Severity.NOTE, "zookeeper-not-asked", f"ZooKeeper at {where}", message, advice)]
        advice = "is it up? The brokers were not asked whether they reach it: check the ACLs (DESCRIBE on the cluster)"
        return [Finding(Severity.WARNING, "zookeeper-not-asked", f"ZooKeeper at {where}", message, advice, _MEANS)]
    return []


def _some_are_cut_off(
    view: ClusterView, where: str, cut_off: Mapping[int, str], outside: Mapping[int, int]
) -> list[Finding]:
    """Report brokers that alone do not reach ZooKeeper: those in the cluster, and those that are no longer in it but run."""
    advice = (
        f"repair the network between this broker and {where}; it comes back by itself. If that takes long, stop it; a restart "
        "does not help. Leave the other brokers and ZooKeeper alone"
    )
    means = (
        "the other brokers elect leaders for its partitions when its session has ended, and it gives them up; until then they "
        "have one replica less"
    )
    found = []
    for broker in sorted({*cut_off, *outside}):
        since_ms = view.now_ms - outside[broker] if broker in outside else _since_ms([cut_off[broker]])
        message = "it runs, but cannot reach ZooKeeper" + (f": {cut_off[broker]}" if broker in cut_off else "")
        found.append(Finding(Severity.ERROR, "zookeeper-cut-off", f"broker {broker}", message, advice, means, since_ms))
    return found


def _since_ms(troubles: Iterable[str]) -> int | None:
    return min((at for each in troubles if (at := time_in(each)) is not None), default=None)


def answers_soon(view: ClusterView) -> list[Finding]:
    slow = {
        broker: each.zookeeper_ms
        for broker, each in view.brokers.items()
        if each.zookeeper_ms > view.limits.zookeeper_ms and not each.zookeeper_trouble
    }
    if not slow:
        return []
    message = f"answers brokers {some(slow)} after {max(slow.values()) / 1000:.1f} s"
    advice = "look at its disk (fsync), its load and the network; zk_max_latency of `mntr` says more"
    means = "fail-overs and admin requests take longer; sessions may expire"
    return [Finding(Severity.NOTE, "zookeeper-slow", "ZooKeeper", message, advice, means)]


def disk(view: ClusterView) -> list[Finding]:
    seen = view.zookeeper
    if seen is None or not nearly_full(seen.total_bytes, seen.usable_bytes, view.limits.disk_share):
        return []
    message = f"its disk has {free_space(seen.total_bytes, seen.usable_bytes)}"
    advice = "add room, or keep fewer snapshots: ZooKeeper stops when it cannot write its log"
    return [Finding(Severity.WARNING, "zookeeper-disk-nearly-full", "ZooKeeper", message, advice, _MEANS)]


def closed_to_strangers(view: ClusterView) -> list[Finding]:
    """Clients must not change znodes if `zookeeper.set.acl` or an authorizer is set. The doctor looks without credentials."""
    if view.zookeeper is None or not view.zookeeper.open_znodes:
        return []
    found = view.zookeeper.open_znodes
    subject = f"ZooKeeper at {view.zookeeper.connect}"
    message = f"every client of ZooKeeper, without credentials, can change {some(found)}"
    command = closing_command(view.zookeeper.connect)
    if any(each.settings.get("zookeeper.set.acl") == "true" for each in view.brokers.values()):
        if set(found) == {"/"}:
            means = "any client can delete /controller, and create znodes next to Kafka's"
            return [Finding(Severity.WARNING, "znodes-open", subject, message, f"close it: {command}", means)]
        means = "any client can replace the password of a super user and become administrator, or delete topics"
        advice = (
            f"close them: {command}; then check whether users or ACLs were changed "
            "(`barnabas configs --describe --entity-type users`, `barnabas acls --list`)"
        )
        return [Finding(Severity.ERROR, "znodes-open", subject, message, advice, means)]
    if view.setting("authorizer.class.name"):
        means = "ACLs do not bind clients that reach ZooKeeper: these can change users and ACLs there"
        advice = (
            "allow only brokers to reach ZooKeeper, or set barnabas.zookeeper.digest and then zookeeper.set.acl=true on every "
            f"broker, restart them one by one, and close the znodes: {command}"
        )
        return [Finding(Severity.WARNING, "znodes-open-with-acls", subject, message, advice, means)]
    return []

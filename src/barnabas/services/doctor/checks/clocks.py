"""Clocks. Pure."""

from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView


def agree(view: ClusterView) -> list[Finding]:
    """Compare the clocks that brokers report with each other and with this machine's. Other brokers' clocks show only in the
    records of their coordinators: a stamp from the future reveals them."""
    ahead = {broker: each.clock_ahead_ms for broker, each in view.brokers.items() if each.clock_ahead_ms is not None}
    usual_ms = sorted([0, *ahead.values()])[(len(ahead) + 1) // 2]
    findings = [
        _finding(f"broker {broker}", f"its clock is {_apart(ms - usual_ms)} the others'")
        for broker, ms in sorted(ahead.items())
        if abs(ms - usual_ms) > view.limits.skew_ms
    ]
    if abs(usual_ms) > view.limits.skew_ms:
        findings.append(_finding("this machine", f"its clock is {_apart(-usual_ms)} the brokers'"))
    stamped: dict[int, int] = {}
    for partition, newest in view.newest_ms.items():
        info = view.image.partition(partition)
        if info is not None and info.leader not in ahead and newest - view.now_ms > view.limits.skew_ms:
            stamped[info.leader] = max(stamped.get(info.leader, 0), newest - view.now_ms)
    for broker, ms in sorted(stamped.items()):
        message = f"it leads records stamped {ms / 1000:.1f} s after this machine's time: a clock is wrong, or was"
        findings.append(_finding(f"broker {broker}", message))
    return findings


def _apart(ms: int) -> str:
    return f"{abs(ms) / 1000:.1f} s {'ahead of' if ms > 0 else 'behind'}"


def _finding(subject: str, message: str) -> Finding:
    advice = "run NTP (chrony) on every broker and here"
    means = (
        "retention, the expiry of offsets and delegation tokens go by these clocks, and the time stamps of records by them or "
        "by the producers'"
    )
    return Finding(Severity.WARNING, "clock-skew", subject, message, advice, means)

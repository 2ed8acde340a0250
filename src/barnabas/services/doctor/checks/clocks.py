"""Clocks. Pure."""

from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import ClusterView


def agree(view: ClusterView) -> list[Finding]:
    """The protocol does not report a broker's time, but coordinators stamp their records: a stamp from the future reveals
    it."""
    ahead: dict[int, int] = {}
    for partition, newest in view.newest_ms.items():
        info = view.image.partition(partition)
        if info is not None and newest - view.now_ms > view.limits.skew_ms:
            ahead[info.leader] = max(ahead.get(info.leader, 0), newest - view.now_ms)
    return [
        Finding(
            Severity.WARNING,
            "clock-skew",
            f"broker {broker_id}",
            f"it leads records stamped {ms / 1000:.1f} s after this machine's time: a clock is wrong, or was",
            "run NTP (chrony) on every broker and here",
            "retention and the expiry of offsets go by these clocks",
        )
        for broker_id, ms in sorted(ahead.items())
    ]

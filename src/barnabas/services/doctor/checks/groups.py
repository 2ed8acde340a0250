"""Consumer groups: whether they stop rebalancing, and whether they read records before retention deletes them. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView, GroupPosition


def settle(view: ClusterView) -> list[Finding]:
    return [
        Finding(
            Severity.WARNING,
            "group-rebalancing",
            f"group {group_id}",
            f"it is rebalancing ({state}), when checked twice, {view.limits.group_gap_s:.0f} s apart",
            "does a member take longer than max.poll.interval.ms, or restart again and again? See the members' logs",
            "its members consume nothing meanwhile",
        )
        for group_id, state in sorted(view.rebalancing.items())
    ]


def keep_up(view: ClusterView) -> list[Finding]:
    lost: dict[str, list[GroupPosition]] = {}
    near: dict[str, list[GroupPosition]] = {}
    for each in view.positions:
        if each.committed < each.log_start:
            lost.setdefault(each.group_id, []).append(each)
        elif each.log_start > 0 and each.committed < each.log_end:
            oldest = (each.log_end - each.log_start) * view.limits.retention_share
            if each.committed - each.log_start < oldest:
                near.setdefault(each.group_id, []).append(each)
    findings = []
    for group_id, positions in sorted(lost.items()):
        records = sum(each.log_start - each.committed for each in positions)
        message = f"{records} records were deleted before it read them: {some(each.partition for each in positions)}"
        advice = "raise retention.ms or retention.bytes, add consumers; consumer-groups --reset-offsets sets the next position"
        means = "it continues where auto.offset.reset says, or fails"
        findings.append(Finding(Severity.ERROR, "group-lost-records", f"group {group_id}", message, advice, means))
    for group_id, positions in sorted(near.items()):
        lag = sum(each.log_end - each.committed for each in positions)
        message = f"it is {lag} records behind, near the oldest one that is kept: {some(each.partition for each in positions)}"
        advice = "add consumers, or raise the topic's retention, before records are deleted unread"
        means = "it is about to lose records"
        findings.append(
            Finding(Severity.WARNING, "group-lag-near-retention", f"group {group_id}", message, advice, means)
        )
    return findings

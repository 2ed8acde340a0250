"""Transactions that stay open too long. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.view import ClusterView


def end(view: ClusterView) -> list[Finding]:
    findings = []
    for each in view.transactions:
        if each.start_ms <= 0 or view.now_ms - each.start_ms <= each.timeout_ms + view.limits.transaction_late_ms:
            continue
        where = f" in {some(each.partitions)}" if each.partitions else ""
        message = f"it is open{where} ({each.state}), longer than its timeout of {each.timeout_ms / 1000:.0f} s"
        advice = (
            "is its coordinator able to write? A transaction prepared for two-phase commit waits for its application: "
            "start that, or end it with barnabas transactions abort"
        )
        means = "read_committed consumers see nothing after its first record"
        subject = f"transaction {each.transactional_id}"
        findings.append(Finding(Severity.ERROR, "transaction-stuck", subject, message, advice, means, each.start_ms))
    return findings

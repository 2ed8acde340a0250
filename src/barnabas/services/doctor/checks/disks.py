"""Log directories: online, with free space, on permanent storage. Pure."""

from barnabas.services.doctor.finding import Finding, Severity, some
from barnabas.services.doctor.free_space import free_space, nearly_full, short_lived
from barnabas.services.doctor.view import ClusterView


def log_dirs(view: ClusterView) -> list[Finding]:
    findings = []
    in_tmp: dict[int, list[str]] = {}
    for broker_id, broker in view.brokers.items():
        subject = f"broker {broker_id}"
        for each in broker.log_dirs:
            if each.error:
                message = f"log directory {each.path} is offline ({each.error})"
                advice = (
                    "look for the I/O error in its log (a failing or read-only disk), repair it, and restart the broker"
                )
                means = "other brokers lead its partitions; those without another copy are offline"
                findings.append(Finding(Severity.ERROR, "log-dir-offline", subject, message, advice, means))
            elif nearly_full(each.total_bytes, each.usable_bytes, view.limits.disk_share):
                message = f"the disk of {each.path} has {free_space(each.total_bytes, each.usable_bytes)}"
                advice = "add room, lower retention, or move replicas"
                means = "a full disk takes the directory offline"
                findings.append(Finding(Severity.WARNING, "disk-nearly-full", subject, message, advice, means))
            if short_lived(each.path):
                in_tmp.setdefault(broker_id, []).append(each.path)
    if in_tmp:
        # One finding for all brokers: they have one cause and one remedy.
        paths = [path for several in in_tmp.values() for path in several]
        subject = f"broker {some(in_tmp)}" if len(in_tmp) == 1 else f"brokers {some(in_tmp)}"
        message = f"data is in a place that a reboot may empty: {some(paths, 1)}"
        advice = "fine for a trial cluster; else set log.dirs (barnabas up --data)"
        findings.append(Finding(Severity.NOTE, "log-dirs-in-tmp", subject, message, advice))
    return findings

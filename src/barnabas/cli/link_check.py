"""`barnabas link check`: report what of a cluster a link would carry over. It changes nothing."""

import os
from typing import Any

from barnabas.base.config.properties import resolve_variables
from barnabas.broker.features.link.settings import LinkSettings, check_pattern
from barnabas.cli._connection import options, run
from barnabas.cli._link_findings import judge, kind_of, rows
from barnabas.cli._link_source import Source, Target, look, look_at_target
from barnabas.cli._output import say, say_json, table
from barnabas.cli._progress import telling
from barnabas.cli._words import duration_text, size_text
from barnabas.cli.doctor import EXIT, show
from barnabas.client.config import load_properties
from barnabas.services.doctor.finding import Finding, count, in_order, worst

_HEADERS = ("WHAT", "FOUND", "CARRIES OVER")


def check(
    *,
    config: str,
    topics: str = ".*",
    groups: str = ".*",
    bootstrap_server: str | None = None,
    command_config: str | None = None,
    json: bool = False,
) -> int:
    """`config` is the source's properties file, as for `link create`. `bootstrap_server` adds checks of the target cluster.

    Exit status 0: everything carries over, except for notes; 1: a problem prevents the link; 3: some data stays behind.
    """
    # Parse as `create` does, so that mistakes in the file show up here first.
    settings = LinkSettings.of(resolve_variables(load_properties(config), os.environ), name="check")
    check_pattern(topics, what="--topics")
    check_pattern(groups, what="--groups")
    with telling("waiting for a source that does not answer"):
        source = run(settings.client, lambda cluster: look(cluster, topics=topics, groups=groups))
        target = None
        if bootstrap_server is not None:
            target = run(options(bootstrap_server, command_config), look_at_target)
    source.topic_configs = settings.topic_configs
    findings = in_order(judge(source, target))
    severity = worst(findings)
    if json:
        say_json(_document(source, target, findings))
    else:
        _print(source, findings)
    return EXIT[severity]


def _print(source: Source, findings: list[Finding]) -> None:
    say(f"source {source.cluster_id or '(without an id)'}: {kind_of(source)}, {count(len(source.brokers), 'broker')}")
    lines = rows(source)
    width = [max(len(row[column]) for row in (_HEADERS, *lines)) for column in range(2)]

    def plain() -> None:
        for what, found, carries in (_HEADERS, *lines):
            say(f"{what:{width[0]}}  {found:{width[1]}}  {carries}")

    table(_HEADERS, lines, plain)
    say(_estimate(source))
    for finding in findings:
        show(finding)
    say(_verdict(findings))


def _verdict(findings: list[Finding]) -> str:
    by_severity = {severity: sum(finding.severity == severity for finding in findings) for severity in EXIT if severity}
    if worst(findings) is None:
        return "everything carries over"
    return " ".join(
        f"{number} {severity}{'s' if number != 1 else ''}" for severity, number in by_severity.items() if number
    )


def _estimate(source: Source) -> str:
    size = source.size_bytes
    if size is None:
        return "size: the source does not say"
    if source.bytes_per_s is None:
        return f"size: {size_text(size)}; too little to read to tell how long it takes"
    return (
        f"size: {size_text(size)}; about {duration_text(size / source.bytes_per_s)} at {source.bytes_per_s / 1e6:.0f} MB/s, "
        "which one connection read just now"
    )


def _document(source: Source, target: Target | None, findings: list[Finding]) -> dict[str, Any]:
    size, rate = source.size_bytes, source.bytes_per_s
    return {
        "ok": worst(findings) is None,
        "source": {
            "cluster_id": source.cluster_id,
            "kind": kind_of(source),
            "brokers": sorted(source.brokers),
            "features": {name: level[1] for name, level in sorted(source.versions.finalized_features.items())},
        },
        "target": None if target is None else {"cluster_id": target.cluster_id, "brokers": sorted(target.brokers)},
        "topics": [
            {
                "name": name,
                "partitions": topic.partitions,
                "records_max": sum(end - start for start, end in topic.offsets.values()),
                "size_bytes": topic.size_bytes,
            }
            for name, topic in source.topics.items()
        ],
        "carries": [row._asdict() for row in rows(source)],
        "size_bytes": size,
        "bytes_per_second": rate,
        "seconds": size / rate if size is not None and rate else None,
        "findings": [finding.as_json() for finding in findings],
    }

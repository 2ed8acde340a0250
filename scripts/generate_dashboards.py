#!/usr/bin/env python3
"""Write the Grafana dashboards in deploy/grafana/ from the panels below. With --check it fails if one is outdated."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${source}"}
OF = '{job=~"$job", instance=~"$instance"}'
COLUMNS, HEIGHT = 24, 8


@dataclass(frozen=True)
class Panel:
    title: str
    #: Expressions, each with its legend.
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    what: str = ""
    #: Show one number instead of lines over time; red from `bad` on.
    stat: bool = False
    bad: float | None = None
    width: int = 8


def line(title: str, *queries: tuple[str, str], unit: str = "short", what: str = "", width: int = 8) -> Panel:
    return Panel(title, queries, unit, what, width=width)


def stat(title: str, query: str, *, bad: float | None = None, unit: str = "short", what: str = "") -> Panel:
    return Panel(title, ((query, ""),), unit, what, stat=True, bad=bad, width=4)


def rate(metric: str, by: str = "instance", labels: str = OF) -> str:
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def quantile(metric: str, share: float, by: str, labels: str = OF) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{labels}[$__rate_interval])))"


TOPIC = '{job=~"$job", topic=~"$topic"}'
#: The end offset of each partition minus the committed offset of each group.
LAG = (
    'sum by (group, topic) (max by (topic, partition) (kafka_log_log_end_offset{job=~"$job"})'
    " - on (topic, partition) group_right() max by (group, topic, partition)"
    ' (kafka_coordinator_group_committed_offset{job=~"$job", group=~"$group"}))'
)

BROKERS = (
    stat("Brokers", 'max(kafka_controller_active_broker_count{job=~"$job"})'),
    stat("Controllers", 'sum(kafka_controller_active_controller_count{job=~"$job"})', what="1 is right."),
    stat("Offline partitions", 'sum(kafka_controller_offline_partitions_count{job=~"$job"})', bad=1),
    stat("Under min ISR", 'sum(kafka_server_replica_manager_under_min_isr_partition_count{job=~"$job"})', bad=1),
    stat("Under replicated", 'sum(kafka_server_replica_manager_under_replicated_partitions{job=~"$job"})', bad=1),
    stat("Bugs in an hour", 'sum(increase(barnabas_request_bugs_total{job=~"$job"}[1h]))', bad=1),
    line("Requests", (rate("kafka_network_requests_total"), "{{instance}}"), unit="reqps"),
    line("Requests by kind", (rate("kafka_network_requests_total", "request"), "{{request}}"), unit="reqps"),
    line("Errors by kind", (rate("kafka_network_request_errors_total", "request"), "{{request}}"), unit="reqps"),
    line(
        "Produce, 99 of 100 are faster",
        (
            quantile(
                "kafka_network_request_total_time_ms",
                0.99,
                "instance",
                '{job=~"$job", instance=~"$instance", request="Produce"}',
            ),
            "{{instance}}",
        ),
        unit="ms",
    ),
    line(
        "Where the time of a produce goes",
        *(
            (
                f'sum(rate(kafka_network_request_{part}_time_ms_sum{{job=~"$job", request="Produce"}}[$__rate_interval]))'
                f' / sum(rate(kafka_network_request_{part}_time_ms_count{{job=~"$job", request="Produce"}}'
                "[$__rate_interval]))",
                name,
            )
            for part, name in (
                ("queue", "waits for its turn"),
                ("local", "handler"),
                ("remote", "waits for followers"),
                ("response_queue", "answer waits for its turn"),
            )
        ),
        unit="ms",
        what="Means, one on the other.",
    ),
    line(
        "Event loop late, 99 of 100",
        (quantile("barnabas_event_loop_lag_ms", 0.99, "instance"), "{{instance}}"),
        unit="ms",
    ),
    line("Processor", (rate("process_cpu_seconds_total"), "{{instance}}"), unit="percentunit", what="Of one core."),
    line("Memory", (f"process_resident_memory_bytes{OF}", "{{instance}}"), unit="bytes"),
    line("Connections", (f"kafka_server_connection_count{OF}", "{{instance}}")),
    line(
        "Room on disks",
        (f"kafka_log_dir_usable_bytes{OF} / kafka_log_dir_total_bytes{OF}", "{{instance}} {{log_dir}}"),
        unit="percentunit",
    ),
    line("Descriptors in use", (f"process_open_fds{OF} / process_max_fds{OF}", "{{instance}}"), unit="percentunit"),
    line(
        "ZooKeeper's answers, 99 of 100",
        (quantile("kafka_server_zookeeper_request_latency_ms", 0.99, "instance"), "{{instance}}"),
        unit="ms",
    ),
    line("Clients held back by quotas", (f"kafka_server_throttled_channels{OF}", "{{instance}}")),
    line("Refused connections", (rate("kafka_server_connections_rejected_total"), "{{instance}}"), unit="cps"),
    line("Waiting requests", (f"kafka_server_purgatory_size{OF}", "{{instance}} {{delayed_operation}}")),
)

TOPICS = (
    line(
        "Records in", (rate("kafka_server_topic_messages_in_total", "topic", TOPIC), "{{topic}}"), unit="cps", width=12
    ),
    line("Bytes in", (rate("kafka_server_topic_bytes_in_total", "topic", TOPIC), "{{topic}}"), unit="Bps", width=12),
    line(
        "Bytes out, to consumers",
        (rate("kafka_server_topic_bytes_out_total", "topic", TOPIC), "{{topic}}"),
        unit="Bps",
        width=12,
    ),
    line(
        "Refused appends",
        (rate("kafka_server_topic_failed_produce_requests_total", "topic", TOPIC), "{{topic}}"),
        width=12,
    ),
    line("Size, all replicas", (f"sum by (topic) (kafka_log_size_bytes{TOPIC})", "{{topic}}"), unit="bytes", width=12),
    line(
        "Records kept",
        (
            f"sum by (topic) (max by (topic, partition) (kafka_log_log_end_offset{TOPIC})"
            f" - max by (topic, partition) (kafka_log_log_start_offset{TOPIC}))",
            "{{topic}}",
        ),
        what="Offsets between start and end; a compacted topic has fewer records.",
        width=12,
    ),
)

GROUPS = (
    line("Lag", (LAG, "{{group}} {{topic}}"), unit="short", what="Records that a group has not committed.", width=24),
    line(
        "Committed",
        (
            "sum by (group, topic) (rate(kafka_coordinator_group_committed_offset"
            '{job=~"$job", group=~"$group"}[$__rate_interval]))',
            "{{group}} {{topic}}",
        ),
        unit="cps",
        width=12,
    ),
    line(
        "Rebalances",
        (rate("kafka_server_group_coordinator_group_completed_rebalance_total"), "classic, {{instance}}"),
        (rate("kafka_server_group_coordinator_consumer_group_rebalance_total"), "consumer, {{instance}}"),
        width=12,
    ),
    line(
        "Classic groups by state",
        *(
            (f'sum(kafka_coordinator_group_num_groups_{state}{{job=~"$job"}})', state.replace("_", " "))
            for state in ("stable", "preparing_rebalance", "completing_rebalance", "empty", "dead")
        ),
        width=12,
    ),
    line(
        "Consumer groups by state",
        ('sum by (state) (kafka_server_group_coordinator_consumer_group_count{job=~"$job"})', "{{state}}"),
        width=12,
    ),
)

REPLICATION = (
    line("Under replicated", (f"kafka_server_replica_manager_under_replicated_partitions{OF}", "{{instance}}")),
    line("At min ISR", (f"kafka_server_replica_manager_at_min_isr_partition_count{OF}", "{{instance}}")),
    line("Under min ISR", (f"kafka_server_replica_manager_under_min_isr_partition_count{OF}", "{{instance}}")),
    line("Slowest follower", (f"kafka_server_replica_fetcher_manager_max_lag{OF}", "{{instance}}"), what="In records."),
    line(
        "ISRs that shrink and grow",
        (rate("kafka_server_replica_manager_isr_shrinks_total"), "shrinks, {{instance}}"),
        (rate("kafka_server_replica_manager_isr_expands_total"), "grows, {{instance}}"),
    ),
    line("Changes of an ISR refused", (rate("kafka_server_replica_manager_failed_isr_updates_total"), "{{instance}}")),
    line("Leaders", (f"kafka_server_replica_manager_leader_count{OF}", "{{instance}}")),
    line("Replicas", (f"kafka_server_replica_manager_partition_count{OF}", "{{instance}}")),
    line(
        "Not led by the preferred replica",
        ('max(kafka_controller_preferred_replica_imbalance_count{job=~"$job"})', "partitions"),
    ),
    line("Being reassigned", (f"kafka_server_replica_manager_reassigning_partitions{OF}", "{{instance}}")),
    line("Throttled replication", (f"kafka_server_replication_byte_rate{OF}", "{{instance}} {{quota}}"), unit="Bps"),
    line(
        "Replicas that do not follow, or are on a failed disk",
        (f"kafka_server_replica_fetcher_manager_failed_partitions_count{OF}", "failed, {{instance}}"),
        (f"kafka_server_replica_manager_offline_replica_count{OF}", "offline, {{instance}}"),
    ),
)

COORDINATOR = (
    line(
        "Transactional ids by state",
        ('sum by (state) (kafka_coordinator_transaction_count{job=~"$job"})', "{{state}}"),
        width=12,
    ),
    line(
        "Transactions whose markers wait for a leader",
        (f"kafka_coordinator_transaction_unknown_destination_queue_size{OF}", "{{instance}}"),
        width=12,
    ),
    line("Groups", (f"kafka_coordinator_group_num_groups{OF}", "{{instance}}"), width=12),
    line("Offsets kept", (f"kafka_coordinator_group_num_offsets{OF}", "{{instance}}"), width=12),
    line("Commits", (rate("kafka_server_group_coordinator_offset_commit_total"), "{{instance}}"), unit="cps", width=12),
    line(
        "Offsets that expired or were deleted",
        (rate("kafka_server_group_coordinator_offset_expiration_total"), "expired, {{instance}}"),
        (rate("kafka_server_group_coordinator_offset_deletion_total"), "deleted, {{instance}}"),
        width=12,
    ),
    line(
        "Partitions of __consumer_offsets by state",
        ('sum by (state) (kafka_server_group_coordinator_num_partitions{job=~"$job"})', "{{state}}"),
        width=12,
    ),
    line(
        "How long partitions took to load, 99 of 100",
        (quantile("kafka_server_group_coordinator_partition_load_time_ms", 0.99, "instance"), "groups, {{instance}}"),
        (
            quantile("kafka_server_transaction_coordinator_partition_load_time_ms", 0.99, "instance"),
            "transactions, {{instance}}",
        ),
        unit="ms",
        width=12,
    ),
)

SPARK = (
    line(
        "Lag of queries",
        (LAG, "{{group}} {{topic}}"),
        what="A streaming query with kafka.group.id or groupIdPrefix commits its progress to that group.",
        width=24,
    ),
    line(
        "Read by queries",
        (
            "sum by (group, topic) (rate(kafka_coordinator_group_committed_offset"
            '{job=~"$job", group=~"$group"}[$__rate_interval]))',
            "{{group}} {{topic}}",
        ),
        unit="cps",
        width=12,
    ),
    line(
        "Written to topics",
        (rate("kafka_server_topic_messages_in_total", "topic", TOPIC), "{{topic}}"),
        unit="cps",
        width=12,
    ),
    line(
        "Transactions of sinks, by state",
        ('sum by (state) (kafka_coordinator_transaction_count{job=~"$job"})', "{{state}}"),
        what="An exactly-once sink holds a prepared transaction until Spark has decided on its batch.",
        width=12,
    ),
    line(
        "Fetches of readers, 99 of 100 are faster",
        (
            quantile("kafka_network_request_local_time_ms", 0.99, "instance", '{job=~"$job", request="Fetch"}'),
            "{{instance}}",
        ),
        unit="ms",
        what="Time in the handler; a reader that waits for new records is not counted.",
        width=12,
    ),
)

DASHBOARDS = {
    "brokers": ("barnabas: brokers", BROKERS),
    "topics": ("barnabas: topics", TOPICS),
    "groups": ("barnabas: groups", GROUPS),
    "replication": ("barnabas: replication", REPLICATION),
    "coordinator": ("barnabas: coordinators", COORDINATOR),
    "spark": ("barnabas: Spark", SPARK),
}


def variable(name: str, metric: str, label: str | None = None) -> dict[str, Any]:
    query = f"label_values({metric}, {label or name})"
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def dashboard(uid: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    text = " ".join(query for panel in panels for query, _ in panel.queries)
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
        variable("job", "kafka_server_broker_state"),
    ]
    for name, metric in (
        ("instance", 'kafka_server_broker_state{job=~"$job"}'),
        ("topic", 'kafka_log_log_end_offset{job=~"$job"}'),
        ("group", 'kafka_coordinator_group_committed_offset{job=~"$job"}'),
    ):
        if f"${name}" in text:
            variables.append(variable(name, metric))
    return {
        "uid": f"barnabas-{uid}",
        "title": title,
        "tags": ["barnabas", "kafka"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "links": [
            {"type": "dashboards", "tags": ["barnabas"], "title": "barnabas", "asDropdown": True, "keepTime": True}
        ],
        "panels": list(placed(panels)),
    }


def placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    x = y = 0
    made = []
    for number, panel in enumerate(panels, 1):
        height = HEIGHT // 2 if panel.stat else HEIGHT
        if x + panel.width > COLUMNS:
            x, y = 0, y + (HEIGHT // 2 if made and made[-1]["type"] == "stat" else HEIGHT)
        made.append(
            {
                "id": number,
                "type": "stat" if panel.stat else "timeseries",
                "title": panel.title,
                "description": panel.what,
                "datasource": SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "fieldConfig": {"defaults": defaults(panel), "overrides": []},
                "options": {} if panel.stat else {"legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": [
                    {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
                    for place, (query, legend) in enumerate(panel.queries)
                ],
            }
        )
        x += panel.width
    return made


def defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    return {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}


def main(arguments: list[str]) -> int:
    wrong = []
    for name, (title, panels) in DASHBOARDS.items():
        file = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(name, title, panels), indent=2) + "\n"
        if "--check" not in arguments:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            wrong.append(file.name)
    if wrong:
        print(f"not current: {', '.join(wrong)}; run scripts/generate_dashboards.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`barnabas link`: mirror topics of another cluster into this one, with their offsets; then promote them."""

import asyncio
import os
import sys
from typing import Any, Final

from barnabas.base.config.properties import resolve_variables
from barnabas.base.ids import format_uuid
from barnabas.base.times import time_in
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_fields, say_json, table
from barnabas.cli.tool import CONNECTION, JSON, Argument, Option, Tool
from barnabas.client.admin import links as admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.wire.messages.describe_links import DescribedLink, DescribedMirrorPartition

#: Exit status of a planned promotion if the source has records that were not mirrored.
_LEFT_BEHIND: Final = 3


def _start(text: str) -> str:
    """Parse earliest, latest, or a time: in milliseconds, or as people write it."""
    if text in ("earliest", "latest") or text.isdigit():
        return text
    time_ms = time_in(text)
    if time_ms is None:
        raise UsageError(f"--from {text!r} must be earliest, latest or a time such as 2026-11-16T12:00:00Z")
    return str(time_ms)


TOOL = Tool(
    note="""With their settings, and with the offsets of groups (`--groups`) and ACLs (`--acls`).
    `promote` waits for the end: `--timeout`, `--no-wait`. See [link](link.md).""",
    about="""Mirrors have the same partitions, offsets and batches as their topics at the source, which may be any Kafka
    cluster.""",
    arguments=(Argument("name", "The link.", what="the name of the link"),),
    options=(
        *CONNECTION,
        Option("--config", "The source's client properties, and link.* settings.", metavar="FILE"),
        Option("--topics", "The topics to mirror, by whole names.", metavar="REGEX"),
        Option("--groups", "The groups whose offsets are copied.", metavar="REGEX"),
        Option("--acls", "Copy the source's ACLs.", bool),
        Option(
            "--from", "Where mirrors begin.", _start, metavar="earliest|latest|TIME", default="earliest", name="start"
        ),
        Option("--restart-recreated", "Mirror a topic from its start again if it is recreated at the source.", bool),
        Option("--adopt", "Topics that exist here and were promoted at the source become mirrors.", bool),
        Option("--topic", "This topic only."),
        Option("--now", "Do not wait until the mirrors have all records of the source.", bool),
        Option("--wait", "Wait until it is done.", bool, off="--no-wait"),
        Option(
            "--timeout",
            "How long to wait; it goes on in the cluster.",
            int,
            metavar="SECONDS",
            default=600,
            name="timeout_s",
        ),
        JSON,
    ),
    examples=(
        "barnabas link check --config source.properties --topics 'orders.*'",
        "barnabas link create old --config source.properties --topics 'orders.*' --groups '.*'",
        "barnabas link describe old",
        "barnabas link promote old",
    ),
)


@TOOL.action("check", "Say what of the source a link would carry over; change nothing.", needs=("--config",))
def _check(
    bootstrap_server: str | None,
    command_config: str | None,
    config: str,
    topics: str | None,
    groups: str | None,
    json: bool,
) -> int:
    from barnabas.cli.link_check import check

    return check(
        config=config,
        topics=topics or ".*",
        groups=groups or ".*",
        bootstrap_server=bootstrap_server,
        command_config=command_config,
        json=json,
    )


@TOOL.action("create", "Create a link.", needs=("name", "--config", "--topics"))
async def _create(
    cluster: AsyncClient,
    name: str,
    config: str,
    topics: str,
    groups: str | None,
    acls: bool,
    start: str,
    restart_recreated: bool,
    adopt: bool,
) -> None:
    configs = resolve_variables(load_properties(config), os.environ)
    configs = {key: value for key, value in configs.items() if not key.startswith("config.providers")}
    await admin.create_link(
        cluster,
        name,
        configs=configs,
        topics=topics,
        groups=groups,
        acls=acls,
        start=start,
        restart_recreated=restart_recreated,
        adopt=adopt,
    )
    say(f"Created link {name}.")


@TOOL.action("list", "List links.")
async def _list(cluster: AsyncClient, name: str | None, topic: str | None, json: bool) -> None:
    await _show(cluster, name, topic, json=json, detailed=False)


@TOOL.action("describe", "Show how far links and their topics are.")
async def _describe(cluster: AsyncClient, name: str | None, topic: str | None, json: bool) -> None:
    await _show(cluster, name, topic, json=json, detailed=True)


@TOOL.action("pause", "Stop mirroring for a while.", needs=("name",))
async def _pause(cluster: AsyncClient, name: str, topic: str | None) -> None:
    await admin.alter_link(cluster, name, "pause", topic=topic)
    say(f"Paused {topic or f'link {name}'}.")


@TOOL.action("resume", "Mirror again.", needs=("name",))
async def _resume(cluster: AsyncClient, name: str, topic: str | None) -> None:
    await admin.alter_link(cluster, name, "resume", topic=topic)
    say(f"Resumed {topic or f'link {name}'}.")


@TOOL.action("promote", "Turn mirrors into ordinary topics, when they have all records of the source.", needs=("name",))
async def _promote(
    cluster: AsyncClient, name: str, topic: str | None, now: bool, wait: bool, timeout_s: int, json: bool
) -> int:
    left = await _promoted(cluster, name, topic, now=now, wait_s=timeout_s if wait else 0, json=json)
    return _LEFT_BEHIND if left and not now else 0


@TOOL.action("delete", "Delete a link; its mirrors stay as ordinary topics.", needs=("name",))
async def _delete(cluster: AsyncClient, name: str) -> None:
    await admin.delete_link(cluster, name)
    say(f"Deleted link {name}.")


async def _promoted(cluster: AsyncClient, name: str, topic: str | None, *, now: bool, wait_s: float, json: bool) -> int:
    """Promote, and return the number of records known to be at the source but not mirrored."""
    await admin.alter_link(cluster, name, "promote-now" if now else "promote", topic=topic)
    if not wait_s:
        say(f"Promoting {topic or f'link {name}'}; `barnabas link describe {name}` shows how far it is.")
        return 0
    loop = asyncio.get_running_loop()
    deadline_s, reported = loop.time() + wait_s, ""
    while True:
        [link] = await admin.describe_links(cluster, [name])
        link.topics = [mirror for mirror in link.topics if topic in (None, mirror.name)]
        remaining = [mirror for mirror in link.topics if mirror.state.startswith("promoting")]
        if not remaining:
            break
        lags = [
            partition.lag_records
            for mirror in remaining
            for partition in mirror.partitions
            if partition.state != "final"
        ]
        unknown = any(lag < 0 for lag in lags)
        progress = f"{len(remaining)} topics to go, {'some' if unknown else sum(lags)} records behind the source"
        if progress != reported:
            warn_progress(progress)
            reported = progress
        if loop.time() > deadline_s:
            raise UsageError(
                f"not promoted within {wait_s:.0f} s: {progress}. The promotion goes on, and ends when no producer "
                "writes to the source any more; if that is not possible, use --now"
            )
        await asyncio.sleep(0.2)
    behind = sum(max(0, partition.lag_records) for each in link.topics for partition in each.partitions)
    if behind:
        warn_progress(
            f"WARNING: {behind} records at the source did not come over: of each partition those from FINAL-OFFSET to SOURCE"
        )
    if json:
        say_json(as_document(link))
        return behind
    say(f"Promoted {topic or f'link {name}'}: writers may move over.")
    table(
        ("TOPIC", "PARTITION", "STATE", "FINAL-OFFSET", "SOURCE", "LAG", "LAG-SECONDS"),
        [(each.name, *_end(partition)) for each in link.topics for partition in each.partitions],
    )
    return behind


def warn_progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _end(partition: DescribedMirrorPartition) -> tuple[str, ...]:
    return (
        str(partition.partition),
        partition.state,
        _known(partition.final_offset),
        _known(partition.source_offset),
        _known(partition.lag_records),
        f"{partition.lag_ms / 1000:.1f}" if partition.lag_ms >= 0 else "-",
    )


def _known(value: int) -> str:
    return str(value) if value >= 0 else "-"


# -- list and describe ------------------------------------------------------------------------------------------------


async def _show(cluster: AsyncClient, name: str | None, topic: str | None, *, json: bool, detailed: bool) -> None:
    links = await admin.describe_links(cluster, None if name is None else [name], partitions=True)
    for link in links:
        if topic is not None:
            link.topics = [each for each in link.topics if each.name == topic]
    if json:
        say_json([as_document(link, detailed=detailed) for link in links])
        return
    if not links:
        sys.stderr.write("there are no links; `barnabas link create` makes one\n")
        return
    if not detailed:
        rows = [_summary(link) for link in links]
        headers = ("LINK", "STATE", "TOPICS", "PARTITIONS", "LAG", "SOURCE", "ERROR")
        table(headers, rows)
        return
    for link in links:
        _print(link)


def as_document(link: DescribedLink, *, detailed: bool = True) -> dict[str, Any]:
    """Return one link as a JSON document."""
    document: dict[str, Any] = {
        "name": link.name,
        "state": link.state,
        "error": link.error,
        "topics_pattern": link.topics_pattern,
        "groups_pattern": link.groups_pattern,
        "acls": link.acls,
        "from": link.start,
        "restart_recreated": link.restart_recreated,
        "source_cluster_id": link.source_cluster_id,
        "groups_copied": link.groups_copied,
        "lag_records": _lag(link),
        "configs": {each.name: each.value for each in link.configs},
    }
    if detailed:
        document["topics"] = [
            {
                "name": each.name,
                "state": each.state,
                "reason": each.reason,
                "source_topic_id": format_uuid(each.source_topic_id),
                "partition_count": each.partition_count,
                "partitions": [_partition_document(partition) for partition in each.partitions],
            }
            for each in link.topics
        ]
    return document


def _partition_document(partition: DescribedMirrorPartition) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "state": partition.state,
        "error": partition.error,
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": partition.log_end_offset,
        "high_watermark": partition.high_watermark,
        "source_offset": partition.source_offset,
        "lag_records": partition.lag_records,
        "lag_ms": partition.lag_ms,
        "source_leader": partition.source_leader,
        "open_transactions": partition.open_transactions,
        "bytes_per_second": partition.bytes_per_second,
        "truncated_records": partition.truncated_records,
        "final_offset": partition.final_offset,
        "epochs": [[each.epoch, each.start_offset] for each in partition.epochs],
    }


def _lag(link: DescribedLink) -> int | None:
    """Return the lag of all partitions together; None while one is unknown."""
    lags = [partition.lag_records for each in link.topics for partition in each.partitions]
    return None if any(lag < 0 for lag in lags) else sum(lags)


def _summary(link: DescribedLink) -> tuple[str, ...]:
    lag = _lag(link)
    source = next((each.value for each in link.configs if each.name == "bootstrap.servers"), None)
    return (
        link.name,
        link.state,
        str(len(link.topics)),
        str(sum(each.partition_count for each in link.topics)),
        "-" if lag is None else str(lag),
        source or "-",
        link.error or "-",
    )


def _print(link: DescribedLink) -> None:
    say_fields(
        f"Link: {link.name}\tState: {link.state}\tTopics: {link.topics_pattern}\tGroups: {link.groups_pattern or '-'}"
    )
    if link.error:
        say(f"  Error: {link.error}")
    rows: list[tuple[str, ...]] = []
    for topic in link.topics:
        if topic.reason:
            say(f"  {topic.name} is {topic.state}: {topic.reason}")
        if not topic.partitions:
            rows.append((topic.name, "-", topic.state, "-", "-", "-", "-", "-", "-", topic.reason or "-"))
        rows += [(topic.name, *_row(topic.state, each)) for each in topic.partitions]
    headers = (
        "TOPIC", "PARTITION", "STATE", "LOG-END", "SOURCE", "LAG", "LAG-SECONDS", "BYTES/S", "OPEN-TXNS", "ERROR",
    )  # fmt: skip
    table(headers, rows)


def _row(state: str, partition: DescribedMirrorPartition) -> tuple[str, ...]:
    return (
        str(partition.partition),
        state if partition.state == "mirroring" else partition.state,
        _known(partition.log_end_offset),
        _known(partition.source_offset),
        _known(partition.lag_records),
        f"{partition.lag_ms / 1000:.1f}" if partition.lag_ms >= 0 else "-",
        f"{partition.bytes_per_second:.0f}",
        str(partition.open_transactions),
        partition.error or "-",
    )

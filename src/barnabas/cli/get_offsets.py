"""`barnabas get-offsets`: kafka-get-offsets.sh."""

import re
import sys
from collections.abc import Callable
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json
from barnabas.cli._parsing import matches
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, excludes
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient

_TIMES: Final = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
    "earliest-pending-upload": EARLIEST_PENDING_UPLOAD,
}
_RULE: Final = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

Filter = Callable[[TopicPartition], bool]


def parse_time(text: str) -> int:
    if text in _TIMES:
        return _TIMES[text]
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"Malformed time argument {text}. Please use -1 or latest / -2 or earliest / -3 or max-timestamp / "
            "-4 or earliest-local / -5 or latest-tiered / -6 or earliest-pending-upload, or a specified long format "
            "timestamp"
        ) from None


def topic_filter(pattern: str, partitions: str | None) -> Filter:
    chosen: set[int] | None = None
    if partitions:
        try:
            chosen = {int(part) for part in partitions.split(",")}
        except ValueError:
            raise UsageError(
                f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
            ) from None
    return lambda where: matches(pattern, where.topic) and (chosen is None or where.partition in chosen)


def rules_filter(text: str) -> Filter:
    """Match any of several rules: `topic`, `topic:3`, `topic:0-3` (without the upper end), `topic:5-`, `:1`."""
    rules = [_rule(part) for part in text.split(",")]
    return lambda where: any(rule(where) for rule in rules)


def _rule(text: str) -> Filter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"Invalid rule specification: {text}")
    pattern = match[1] or ".*"
    if match[2]:
        only = int(match[2])
        return lambda where: matches(pattern, where.topic) and where.partition == only
    low, high = int(match[3] or 0), int(match[4] or 2**31 - 1)
    return lambda where: matches(pattern, where.topic) and low <= where.partition < high


TOOL = Tool(
    kafka="kafka-get-offsets.sh",
    options=(
        *CONNECTION,
        Option(
            "--topic-partitions",
            "Topics, each with partitions or a range.",
            rules_filter,
            metavar="T1:1,T2:0-3,T3,T4:5-,T5:-3",
        ),
        Option("--topic", "A topic, or a regular expression.", default=".*"),
        Option("--partitions", "Only these.", metavar="0,1,…"),
        Option("--time", f"A timestamp, or {', '.join(_TIMES)}.", parse_time, default="latest"),
        Option("--exclude-internal-topics", "Leave internal topics out.", bool),
        JSON,
    ),
    rules=(excludes("--topic-partitions", "--topic", "--partitions"),),
    examples=("barnabas get-offsets --topic orders --time earliest",),
)


@TOOL.main
async def _print(
    cluster: AsyncClient,
    topic_partitions: Filter | None,
    topic: str,
    partitions: str | None,
    time: int,
    exclude_internal_topics: bool,
    json: bool,
) -> None:
    wanted = topic_partitions or topic_filter(topic, partitions)
    chosen = [
        where
        for name, info in (await cluster.all_topics()).items()
        if not (exclude_internal_topics and info.internal)
        for part in info.partitions
        if wanted(where := TopicPartition(name, part.index))
    ]
    if not chosen:
        raise UsageError("Could not match any topic-partitions with the specified filters")
    listed = await list_offsets(cluster, dict.fromkeys(chosen, time))
    found: list[tuple[TopicPartition, int]] = []
    # As in Kafka, sort by the text of the partition: topic-10 comes before topic-2.
    for where in sorted(listed, key=str):
        entry = listed[where]
        if entry.error is not ErrorCode.NONE:
            sys.stderr.write(f"Skip getting offsets for topic-partition {where} due to error: {entry.error.name}\n")
        elif entry.offset >= 0:
            found.append((where, entry.offset))
    if json:
        say_json([{"topic": where.topic, "partition": where.partition, "offset": offset} for where, offset in found])
        return
    for where, offset in found:
        say(f"{where.topic}:{where.partition}:{offset}")

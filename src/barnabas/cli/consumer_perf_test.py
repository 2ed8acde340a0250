"""`barnabas consumer-perf-test`: kafka-consumer-perf-test.sh."""

import asyncio
import random
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say
from barnabas.cli.tool import BOOTSTRAP, Option, Tool
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.fetching import ConsumerConfig
from barnabas.client.group import GroupConsumer
from barnabas.client.membership import GroupConfig
from barnabas.client.settings import consumer_config, group_config

_MB: Final = 1024 * 1024
_POLL_MS: Final = 100
_EXTRA: Final = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"


def positive_interval(text: str) -> int:
    if (number := int(text)) <= 0:
        raise UsageError("Reporting interval must be greater than 0.")
    return number


#: Options that `share-consumer-perf-test` has, too.
PACE: Final = (
    Option("--timeout", "Longest wait for a record.", int, metavar="MS", default=10_000),
    Option(
        "--reporting-interval",
        "Between two lines of --show-detailed-stats.",
        positive_interval,
        metavar="MS",
        default="5000",
    ),
)
OUTPUT: Final = (
    Option("--date-format", "As java.text.SimpleDateFormat.", default="yyyy-MM-dd HH:mm:ss:SSS"),
    Option("--hide-header", "No header line.", bool),
    Option(
        "--socket-buffer-size",
        kind=int,
        metavar="BYTES",
        no_effect="the operating system sizes the buffers of sockets",
    ),
    Option(
        "--print-metrics",
        "Refused.",
        bool,
        refused="--print-metrics: the consumers here have no metrics; use the brokers' metrics",
    ),
)

TOOL = Tool(
    note="`--print-metrics` is refused: the clients have no metrics.",
    kafka="kafka-consumer-perf-test.sh",
    options=(
        replace(BOOTSTRAP, also=("--broker-list",)),
        Option("--consumer.config", "Properties file with settings of the client.", metavar="FILE", name="config_file"),
        Option("--topic", "The topic to consume. Required.", required=True),
        Option("--messages", "How many records to consume. Required.", int, required=True),
        Option("--group", "The group. [perf-consumer-…]"),
        Option("--fetch-size", "Bytes of a partition per fetch.", int, metavar="BYTES", default=1024 * 1024),
        Option("--from-latest", "Begin at the end.", bool),
        *PACE,
        Option("--show-detailed-stats", "A line for every interval.", bool),
        *OUTPUT,
    ),
    examples=("barnabas consumer-perf-test --topic orders --messages 1000000",),
)


@TOOL.main
def _measure(
    bootstrap_server: str | None,
    config_file: str | None,
    topic: str,
    messages: int,
    group: str | None,
    fetch_size: int,
    from_latest: bool,
    timeout: int,
    reporting_interval: int,
    show_detailed_stats: bool,
    date_format: str,
    hide_header: bool,
) -> None:
    properties = load_properties(config_file) if config_file else {}
    properties["max.partition.fetch.bytes"] = str(fetch_size)
    properties["auto.offset.reset"] = "latest" if from_latest else "earliest"
    properties["check.crcs"] = "false"
    properties.setdefault("client.id", "perf-consumer-client")
    group_id = group or f"perf-consumer-{random.randrange(100_000)}"
    report = _Report(date_format, reporting_interval, show_detailed_stats)
    if not hide_header:
        first = "time, threadId" if show_detailed_stats else "start.time, end.time"
        say(f"{first}, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec{_EXTRA}")
        sys.stdout.flush()
    run(
        options(bootstrap_server, properties=properties, known=names.CONSUMER),
        lambda cluster: _consume(
            cluster, topic, messages, timeout, consumer_config(properties), group_config(group_id, properties), report
        ),
        fast=True,
    )
    if report.messages < messages:
        say(
            f"WARNING: Exiting before consuming the expected number of messages: timeout ({timeout} ms) exceeded. "
            "You can use the --timeout option to increase the timeout."
        )
    if not show_detailed_stats:
        say(report.total())


@dataclass(slots=True)
class _Report:
    date_format: str
    interval_ms: int
    detailed: bool
    messages: int = 0
    bytes: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    join_ms: int = 0
    #: Start of the current interval, and the totals at its start.
    since_s: float = 0.0
    since_messages: int = 0
    since_bytes: int = 0
    join_in_interval_ms: int = 0

    def maybe_print(self, now_s: float) -> None:
        elapsed_ms = (now_s - self.since_s) * 1000
        if elapsed_ms < self.interval_ms:
            return
        if self.detailed:
            megabytes = (self.bytes - self.since_bytes) / _MB
            count = self.messages - self.since_messages
            fetch_ms = int(elapsed_ms) - self.join_in_interval_ms
            per_s = 1000 / fetch_ms if fetch_ms > 0 else 0.0
            say(
                f"{java_date(now_s, self.date_format)}, 0, {self.bytes / _MB:.4f}, {1000 * megabytes / elapsed_ms:.4f}, "
                f"{self.messages}, {1000 * count / elapsed_ms:.4f}, {self.join_in_interval_ms}, {fetch_ms}, "
                f"{megabytes * per_s:.4f}, {count * per_s:.4f}"
            )
            sys.stdout.flush()
        self.since_s, self.since_messages, self.since_bytes = now_s, self.messages, self.bytes
        self.join_in_interval_ms = 0

    def total(self) -> str:
        elapsed_s = max(self.end_s - self.start_s, 1e-3)
        fetch_ms = max(int(elapsed_s * 1000) - self.join_ms, 1)
        megabytes = self.bytes / _MB
        return (
            f"{java_date(self.start_s, self.date_format)}, {java_date(self.end_s, self.date_format)}, {megabytes:.4f}, "
            f"{megabytes / elapsed_s:.4f}, {self.messages}, {self.messages / elapsed_s:.4f}, {self.join_ms}, {fetch_ms}, "
            f"{1000 * megabytes / fetch_ms:.4f}, {1000 * self.messages / fetch_ms:.4f}"
        )


async def _consume(
    cluster: AsyncClient,
    topic: str,
    messages: int,
    timeout_ms: int,
    config: ConsumerConfig,
    group: GroupConfig,
    report: _Report,
) -> None:
    report.start_s = report.since_s = last_s = time.time()
    async with GroupConsumer(cluster, group, topics=[topic], config=config) as consumer:
        while report.messages < messages:
            joined_before = consumer.joins
            began_at_s = asyncio.get_running_loop().time()
            arrived = await consumer.poll(_POLL_MS)
            now_s = time.time()
            if consumer.joins > joined_before:
                joined_ms = int((consumer.joined_at_s - began_at_s) * 1000)
                report.join_ms += joined_ms
                report.join_in_interval_ms += joined_ms
            if arrived:
                last_s = now_s
            elif (now_s - last_s) * 1000 > timeout_ms:
                break
            for fetched in arrived:
                for record in fetched.records(isolation_level=config.isolation_level, check_crcs=False):
                    report.messages += 1
                    report.bytes += len(record.key or b"") + len(record.value or b"")
                consumer.consumed(fetched.partition, fetched.next_position)
            report.maybe_print(now_s)
        report.end_s = time.time()


_DATE_PARTS: Final = (
    ("yyyy", "%Y"),
    ("MM", "%m"),
    ("dd", "%d"),
    ("HH", "%H"),
    ("mm", "%M"),
    ("ss", "%S"),
)


def java_date(moment_s: float, pattern: str) -> str:
    """Format the parts of SimpleDateFormat that a timestamp needs."""
    moment = datetime.fromtimestamp(moment_s)
    text = pattern.replace("%", "%%").replace("SSS", f"{moment.microsecond // 1000:03d}")
    for java, python in _DATE_PARTS:
        text = text.replace(java, python)
    return moment.strftime(text)

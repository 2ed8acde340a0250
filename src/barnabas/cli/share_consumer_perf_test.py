"""`barnabas share-consumer-perf-test`: kafka-share-consumer-perf-test.sh."""

import asyncio
import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say
from barnabas.cli._parsing import pairs
from barnabas.cli.consumer_perf_test import OUTPUT, PACE, java_date
from barnabas.cli.tool import BOOTSTRAP, Option, Tool
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.settings import share_config
from barnabas.client.share_consumer import ShareConsumer
from barnabas.client.share_session import AcknowledgementMode, AcknowledgeType, ShareConfig

_MB: Final = 1024 * 1024
_POLL_MS: Final = 100
_HEADER: Final = "start.time, end.time, data.consumed.in.MB, MB.sec, nMsg.sec, data.consumed.in.nMsg, fetch.time.ms"

TOOL = Tool(
    note="All consumers run in one process, each with its own connections. `--print-metrics` is refused: they have no metrics.",
    kafka="kafka-share-consumer-perf-test.sh",
    options=(
        BOOTSTRAP,
        Option("--topic", "The topic to consume. Required.", required=True),
        Option("--group", "The share group.", default="perf-share-consumer"),
        Option(
            "--num-records",
            "How many records to consume. Required.",
            int,
            metavar="COUNT",
            also=("--messages",),
            required=True,
        ),
        Option("--threads", "How many share consumers read together.", int, metavar="COUNT", default=1, least=1),
        Option("--fetch-size", "Bytes per fetch.", int, metavar="BYTES", default=_MB),
        Option(
            "--command-config",
            "Properties file with settings of the client.",
            metavar="FILE",
            name="config_file",
            also=("--consumer.config",),
        ),
        Option("--command-property", "A setting of the consumers.", metavar="NAME=VALUE", many=True),
        *PACE,
        Option("--show-detailed-stats", "A line for every interval of each consumer.", bool),
        Option("--show-consumer-stats", "A line for each consumer at the end.", bool),
        *OUTPUT,
    ),
    examples=(
        "barnabas share-consumer-perf-test --topic orders --num-records 1000000",
        "barnabas share-consumer-perf-test --topic orders --num-records 1000000 --threads 10 --show-consumer-stats",
    ),
)


@TOOL.main
def _measure(
    bootstrap_server: str | None,
    config_file: str | None,
    command_property: Sequence[str],
    topic: str,
    group: str,
    num_records: int,
    threads: int,
    fetch_size: int,
    timeout: int,
    reporting_interval: int,
    show_detailed_stats: bool,
    show_consumer_stats: bool,
    date_format: str,
    hide_header: bool,
) -> None:
    properties = load_properties(config_file) if config_file else {}
    properties |= pairs(command_property, option="--command-property")
    properties |= {"fetch.max.bytes": str(fetch_size), "check.crcs": "false"}
    properties.setdefault("client.id", "perf-share-consumer-client")
    if properties.get("group.id", group) != group:
        raise UsageError(f"--group is {group}, but group.id is {properties['group.id']}: name one share group")
    if not hide_header:
        say(_HEADER)
        sys.stdout.flush()
    test = _Test(
        topic,
        share_config(group, properties),
        records_max=num_records,
        timeout_ms=timeout,
        interval_ms=reporting_interval if show_detailed_stats else None,
        date_format=date_format,
    )
    run(
        options(bootstrap_server, properties=properties, known=names.SHARE_CONSUMER),
        lambda cluster: test.run(cluster, threads),
        fast=True,
    )
    if show_consumer_stats:
        for index, each in enumerate(test.parts, start=1):
            say(f"Share consumer {index} consumption metrics- {test.figures(each)}")
    if test.total.records < num_records:
        say(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({timeout} ms) exceeded. "
            "You can use the --timeout option to increase the timeout."
        )
    say(test.figures(test.total))


@dataclasses.dataclass(slots=True)
class _Count:
    records: int = 0
    bytes: int = 0

    def __sub__(self, other: "_Count") -> "_Count":
        return _Count(self.records - other.records, self.bytes - other.bytes)


class _Test:
    def __init__(
        self,
        topic: str,
        config: ShareConfig,
        *,
        records_max: int,
        timeout_ms: int,
        interval_ms: int | None,
        date_format: str,
    ) -> None:
        self._topic = topic
        self._config = config
        self._records_max = records_max
        self._timeout_ms = timeout_ms
        #: Between two lines of a consumer; None: there are none.
        self._interval_ms = interval_ms
        self._date_format = date_format
        self.total = _Count()
        #: By consumer.
        self.parts: list[_Count] = []
        self._start_s = self._end_s = 0.0

    async def run(self, cluster: AsyncClient, consumers: int) -> None:
        """Consume with so many share consumers. The first one uses this client."""
        self.parts = [_Count() for _ in range(consumers)]
        async with AsyncExitStack() as stack:
            clients = [cluster]
            for _ in range(consumers - 1):
                clients.append(await stack.enter_async_context(AsyncClient(cluster.config)))
            self._start_s = time.time()
            members = [
                await stack.enter_async_context(ShareConsumer(each, self._config, topics=[self._topic]))
                for each in clients
            ]
            async with asyncio.TaskGroup() as group:
                for index, member in enumerate(members):
                    group.create_task(self._consume(member, index))
            self._end_s = time.time()
            for member in members:
                await member.commit()

    async def _consume(self, consumer: ShareConsumer, index: int) -> None:
        part, is_explicit = self.parts[index], self._config.acknowledgement_mode is AcknowledgementMode.EXPLICIT
        last_s = reported_s = time.time()
        reported = _Count()
        while self.total.records < self._records_max and (time.time() - last_s) * 1000 <= self._timeout_ms:
            records = await consumer.poll(_POLL_MS)
            now_s = time.time()
            if not records:
                continue
            last_s = now_s
            size_bytes = sum(len(each.record.key or b"") + len(each.record.value or b"") for each in records)
            for count in (part, self.total):
                count.records += len(records)
                count.bytes += size_bytes
            if is_explicit:
                for each in records:
                    consumer.acknowledge(each, AcknowledgeType.ACCEPT)
            if self._interval_ms is not None and (now_s - reported_s) * 1000 >= self._interval_ms:
                say(f"{self._progress(part, part - reported, reported_s, now_s)} for share consumer {index + 1}")
                sys.stdout.flush()
                reported_s, reported = now_s, dataclasses.replace(part)

    def _progress(self, part: _Count, since: _Count, start_s: float, end_s: float) -> str:
        elapsed_s = end_s - start_s
        return (
            f"{self._period(start_s, end_s)}, {part.bytes / _MB:.4f}, {since.bytes / _MB / elapsed_s:.4f}, "
            f"{since.records / elapsed_s:.4f}, {part.records}, {int(elapsed_s * 1000)}"
        )

    def figures(self, count: _Count) -> str:
        return self._progress(count, count, self._start_s, max(self._end_s, self._start_s + 1e-3))

    def _period(self, start_s: float, end_s: float) -> str:
        return f"{java_date(start_s, self._date_format)}, {java_date(end_s, self._date_format)}"

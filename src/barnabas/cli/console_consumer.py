"""`barnabas console-consumer`: kafka-console-consumer.sh.

Without `--group` it reads all partitions itself, so it creates no group that is never used again.
"""

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Protocol

import typer

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._format import Formatter, formatter_of
from barnabas.cli._missing_topic import wait_until_created
from barnabas.cli._output import say
from barnabas.cli._parsing import matches, pairs
from barnabas.cli._tool import Bootstrap
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.group import GroupConsumer
from barnabas.client.settings import consumer_config, group_config
from barnabas.client.subscription import Subscription
from barnabas.wire.records import iter_records

_FOREVER_MS = 2**31


class Source(Protocol):
    """A source of records: a consumer with its own partitions, or a member of a group."""

    async def poll(self, timeout_ms: int) -> list[Fetched]: ...

    def consumed(self, partition: TopicPartition, next_offset: int) -> None: ...


def command(
    bootstrap_server: Bootstrap = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic to consume.")] = None,
    include: Annotated[
        str | None, typer.Option("--include", metavar="REGEX", help="Topics to consume, as a regular expression.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="The partition to consume.")] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="Where to begin: a number, earliest or latest. [latest]")
    ] = None,
    consumer_property: Annotated[
        list[str] | None, typer.Option("--consumer-property", metavar="NAME=VALUE", help="A setting of the consumer.")
    ] = None,
    consumer_config_file: Annotated[
        str | None,
        typer.Option("--consumer.config", metavar="FILE", help="Properties file with settings of the client."),
    ] = None,
    formatter: Annotated[
        str, typer.Option("--formatter", metavar="CLASS", help="Default, NoOp or Logging.")
    ] = "Default",
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="print.timestamp, print.key, print.offset, print.partition, print.epoch, print.headers, print.value, "
            "key.separator, line.separator, headers.separator, null.literal, key.deserializer, value.deserializer",
        ),
    ] = None,
    formatter_config: Annotated[
        str | None,
        typer.Option("--formatter-config", metavar="FILE", help="Properties file with properties of the formatter."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the first record if there is no committed offset.")
    ] = False,
    max_messages: Annotated[int, typer.Option("--max-messages", help="Stop after this many records.")] = -1,
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", help="Stop when no record arrives for this long, in ms.")
    ] = -1,
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Skip what cannot be printed.")
    ] = False,
    key_deserializer: Annotated[
        str | None,
        typer.Option("--key-deserializer", metavar="CLASS", help="String, Long, Integer, …, as Kafka names them."),
    ] = None,
    value_deserializer: Annotated[
        str | None, typer.Option("--value-deserializer", metavar="CLASS", help="The same for values.")
    ] = None,
    enable_systest_events: Annotated[bool, typer.Option("--enable-systest-events", hidden=True)] = False,
    isolation_level: Annotated[
        str | None, typer.Option("--isolation-level", help="read_committed or read_uncommitted. [read_uncommitted]")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="The consumer group.")] = None,
) -> None:
    """Print the records of a topic."""
    if (topic is None) == (include is None):
        raise UsageError("Exactly one of --include/--topic is required.")
    if partition is None and offset is not None:
        raise UsageError("The partition is required when offset is specified.")
    if partition is not None and topic is None:
        raise UsageError("The topic is required when partition is specified.")
    if from_beginning and offset is not None:
        raise UsageError("Options from-beginning and offset cannot be specified together.")
    properties = load_properties(consumer_config_file) if consumer_config_file else {}
    properties |= pairs(consumer_property or (), option="--consumer-property")
    properties.setdefault("client.id", "console-consumer")
    if isolation_level is not None:
        properties["isolation.level"] = isolation_level
    _auto_offset_reset(properties, from_beginning)
    groups = {name for name in (group, properties.get("group.id")) if name}
    if len(groups) > 1:
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {', '.join(sorted(groups))}"
        )
    if groups and partition is not None:
        raise UsageError("Options group and partition cannot be specified together.")
    formatting = load_properties(formatter_config) if formatter_config else {}
    if key_deserializer:
        formatting["key.deserializer"] = key_deserializer
    if value_deserializer:
        formatting["value.deserializer"] = value_deserializer
    for item in property_ or ():
        name, _, value = item.partition("=")
        formatting[name.strip()] = value
    printer = formatter_of(formatter, formatting)
    start = _start(offset, from_beginning) if partition is not None else None
    client = options(bootstrap_server, properties=properties, known=names.CONSUMER)
    config = consumer_config(properties)
    group_id = next(iter(groups), None)

    async def consume(cluster: AsyncClient) -> None:
        first, reading = start, config
        if topic is not None and await wait_until_created(cluster, topic, timeout_ms=timeout_ms):
            # The topic was created after this command began, so all of its records are new.
            first = EARLIEST if start == LATEST else start
            reading = dataclasses.replace(config, auto_offset_reset="earliest")
        async with _source(cluster, reading, properties, topic, include, partition, first, group_id) as source:
            await _print_all(source, printer, config, max_messages, timeout_ms, skip_message_on_error)

    try:
        run(client, consume)
    finally:
        if enable_systest_events:
            say("shutdown_complete")


def _auto_offset_reset(properties: dict[str, str], from_beginning: bool) -> None:
    given = properties.get("auto.offset.reset")
    if given is not None and from_beginning and given != "earliest":
        raise UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={given}', please remove one option"
        )
    properties.setdefault("auto.offset.reset", "earliest" if from_beginning else "latest")


def _start(offset: str | None, from_beginning: bool) -> int:
    text = (offset or ("earliest" if from_beginning else "latest")).lower()
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if not text.isdigit():
        raise UsageError(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a non-negative long."
        )
    return int(text)


class _Alone:
    """A consumer without a group. It commits nothing, and reads added partitions and topics from their start."""

    def __init__(
        self, consumer: Consumer, subscription: Subscription, partition: TopicPartition | None, start: int | None
    ) -> None:
        self._consumer = consumer
        self._subscription = subscription
        self._partition = partition
        self._start = start
        self._starting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def poll(self, timeout_ms: int) -> list[Fetched]:
        """Return in time even if a partition has no leader and its offsets cannot be looked up."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        if self._starting is None:
            self._starting = asyncio.create_task(self._begin(), name="find offsets")
        await asyncio.wait([self._starting], timeout=timeout_ms / 1000)
        if not self._starting.done():
            return []
        self._starting.result()
        while True:
            if self._looking is not None and self._looking.done():
                looking, self._looking = self._looking, None
                looking.result()
            look_at_s = self._subscription.look_at_s if self._partition is None else float("inf")
            if self._looking is None and loop.time() >= look_at_s:
                self._looking = asyncio.create_task(self._look(), name="look for new partitions")
                self._looking.add_done_callback(lambda _: self._consumer.wake())
                look_at_s = float("inf")  # the end of the look-up ends the wait
            left_s = min(deadline_s, look_at_s) - loop.time()
            fetched = await self._consumer.poll(max(0, int(left_s * 1000)))
            if fetched or loop.time() >= deadline_s:
                return fetched

    async def _begin(self) -> None:
        found = await self._subscription.look()
        if self._partition is not None:
            if self._partition not in found:
                topic, index = self._partition
                raise BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {index}")
            found = [self._partition]
        if self._start is not None and self._start >= 0:
            self._consumer.assign(dict.fromkeys(found, self._start))
        else:
            self._consumer.assign(await self._consumer.offsets_by_reset(found, self._start))

    async def _look(self) -> None:
        for partition in await self._subscription.look():
            self._consumer.seek(partition, 0)

    def consumed(self, partition: TopicPartition, next_offset: int) -> None:
        return

    async def stop(self) -> None:
        tasks = [task for task in (self._starting, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _source(
    cluster: AsyncClient,
    config: ConsumerConfig,
    properties: Mapping[str, str],
    topic: str | None,
    include: str | None,
    partition: int | None,
    start: int | None,
    group_id: str | None,
) -> AsyncIterator[Source]:
    topics = [topic] if topic else []
    matching = (lambda name: matches(include, name)) if include else None
    if group_id is not None:
        group = group_config(group_id, properties)
        async with GroupConsumer(cluster, group, topics=topics, matching=matching, config=config) as member:
            yield member
        return
    only = TopicPartition(topic, partition) if topic is not None and partition is not None else None
    async with Consumer(cluster, config) as consumer:
        alone = _Alone(consumer, Subscription(cluster, topics, matching), only, start)
        try:
            yield alone
        finally:
            await alone.stop()


class _Count:
    """Counts printed records even if the reader of the pipe stops in the middle of a batch."""

    def __init__(self) -> None:
        self.messages = 0


async def _print_all(
    source: Source, printer: Formatter, config: ConsumerConfig, limit: int, timeout_ms: int, skip_errors: bool
) -> None:
    count = _Count()
    out = sys.stdout.buffer
    try:
        while limit < 0 or count.messages < limit:
            arrived = await source.poll(timeout_ms if timeout_ms >= 0 else _FOREVER_MS)
            if not arrived:
                if timeout_ms >= 0:
                    return
                continue
            for fetched in arrived:
                _print_one(source, fetched, printer, config, count, limit, skip_errors)
            out.flush()
            await asyncio.sleep(0)
    finally:
        sys.stderr.write(f"Processed a total of {count.messages} messages\n")


def _print_one(
    source: Source, fetched: Fetched, printer: Formatter, config: ConsumerConfig, count: _Count, limit: int, skip: bool
) -> None:
    write = sys.stdout.buffer.write
    for pos, header in fetched.visible_batches(isolation_level=config.isolation_level, check_crcs=config.check_crcs):
        for record in iter_records(fetched.data, pos, header):
            if record.offset < fetched.position:
                continue
            if 0 <= limit <= count.messages:
                source.consumed(fetched.partition, record.offset)
                return
            count.messages += 1
            try:
                write(printer(fetched.partition, header, record))
            except (ValueError, Malformed) as error:
                if not skip:
                    raise Malformed(f"{fetched.partition} offset {record.offset}: {error}") from None
                sys.stderr.write(f"skipped {fetched.partition} offset {record.offset}: {error}\n")
    source.consumed(fetched.partition, fetched.next_position)

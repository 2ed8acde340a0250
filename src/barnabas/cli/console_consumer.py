"""`barnabas console-consumer`: kafka-console-consumer.sh.

Without `--group` it reads all partitions itself, so it creates no group that is never used again.
"""

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._format import DeliveryCount, Deserializer, Formatter, formatter_of
from barnabas.cli._missing_topic import wait_until_created
from barnabas.cli._output import say
from barnabas.cli._parsing import matches, pairs
from barnabas.cli._registry import REGISTRY, registry_client
from barnabas.cli.tool import BOOTSTRAP, Option, Tool, exactly_one, excludes, needs
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.group import GroupConsumer
from barnabas.client.membership import GroupConfig
from barnabas.client.settings import consumer_config, group_config
from barnabas.client.subscription import Subscription
from barnabas.wire.records import Record, iter_records

if TYPE_CHECKING:
    from barnabas.cli._schema_values import SchemaReader

_FOREVER_MS = 2**31
_STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Source(Protocol):
    """A source of records: a consumer with its own partitions, or a member of a group."""

    async def poll(self, timeout_ms: int) -> list[Fetched]: ...

    def consumed(self, partition: TopicPartition, next_offset: int) -> None: ...


TOOL = Tool(
    note="""Without `--group` it joins no group, and reads added partitions and topics from their start (Kafka's may
    begin at their end). For a topic that does not exist it warns, proposes the nearest name and waits until
    the topic is created; it creates none (Kafka's does). With `--timeout-ms` it ends with status 1. Kafka's
    own deserializers can be named; other Java classes cannot be loaded.""",
    kafka="kafka-console-consumer.sh",
    options=(
        BOOTSTRAP,
        Option("--consumer.config", "Properties file with settings of the client.", metavar="FILE", name="config_file"),
        Option("--consumer-property", "A setting of the consumer.", metavar="NAME=VALUE", many=True),
        Option("--topic", "The topic to consume."),
        Option("--include", "Topics to consume, as a regular expression.", metavar="REGEX"),
        Option("--partition", "The partition to consume.", int),
        Option("--offset", "Where to begin: a number, earliest or latest. [latest]"),
        Option("--from-beginning", "Begin with the first record if there is no committed offset.", bool),
        Option("--group", "The consumer group."),
        Option("--isolation-level", "read_committed or read_uncommitted. [read_uncommitted]"),
        Option("--max-messages", "Stop after this many records.", int, default=-1),
        Option("--timeout-ms", "Stop when no record arrives for this long.", int, default=-1),
        Option("--formatter", "Default, NoOp or Logging.", metavar="CLASS", default="Default"),
        Option(
            "--property",
            "print.timestamp, print.key, print.offset, print.partition, print.epoch, print.headers, print.value, "
            "key.separator, line.separator, headers.separator, null.literal, key.deserializer, value.deserializer",
            metavar="NAME=VALUE",
            many=True,
        ),
        Option("--formatter-config", "Properties file with properties of the formatter.", metavar="FILE"),
        Option("--key-deserializer", "String, Long, Integer, …, as Kafka names them.", metavar="CLASS"),
        Option("--value-deserializer", "The same for values.", metavar="CLASS"),
        *REGISTRY,
        Option("--skip-message-on-error", "Skip what cannot be printed.", bool),
        Option("--enable-systest-events", "Print shutdown_complete at the end.", bool),
    ),
    rules=(
        excludes(
            "--from-beginning",
            "--offset",
            says="Options from-beginning and offset cannot be specified together.",
        ),
        needs("--offset", "--partition", says="The partition is required when offset is specified."),
        needs("--partition", "--topic", says="The topic is required when partition is specified."),
        exactly_one("--topic", "--include", says="Exactly one of --include/--topic is required."),
    ),
    examples=(
        "barnabas console-consumer --topic orders --from-beginning",
        "barnabas console-consumer --topic orders --group billing --property print.key=true",
        "barnabas console-consumer --topic orders --schema-registry http://localhost:8081",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to read, and from where."""

    topic: str | None = None
    include: str | None = None
    partition: int | None = None
    offset: str | None = None
    from_beginning: bool = False

    @property
    def start(self) -> int | None:
        """Where the partition begins; None for all partitions."""
        if self.partition is None:
            return None
        text = (self.offset or ("earliest" if self.from_beginning else "latest")).lower()
        if text in _STARTS:
            return _STARTS[text]
        if not text.isdigit():
            raise UsageError(
                f"The provided offset value '{self.offset}' is incorrect. "
                "Valid values are 'earliest', 'latest', or a non-negative long."
            )
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printing:
    """How to print records."""

    formatter: str
    property_: Sequence[str]
    formatter_config: str | None
    key_deserializer: str | None
    value_deserializer: str | None

    def printer(self, by_schema: Deserializer | None = None, delivery_count: DeliveryCount | None = None) -> Formatter:
        properties = load_properties(self.formatter_config) if self.formatter_config else {}
        if self.key_deserializer:
            properties["key.deserializer"] = self.key_deserializer
        if self.value_deserializer:
            properties["value.deserializer"] = self.value_deserializer
        for item in self.property_:
            name, _, value = item.partition("=")
            properties[name.strip()] = value
        return formatter_of(self.formatter, properties, by_schema, delivery_count)


@TOOL.main
def _consume(
    bootstrap_server: str | None,
    config_file: str | None,
    consumer_property: Sequence[str],
    isolation_level: str | None,
    group: str | None,
    selection: Selection,
    printing: Printing,
    schema_registry: str | None,
    schema_registry_config: Path | None,
    max_messages: int,
    timeout_ms: int,
    skip_message_on_error: bool,
    enable_systest_events: bool,
) -> None:
    properties = load_properties(config_file) if config_file else {}
    properties |= pairs(consumer_property, option="--consumer-property")
    properties.setdefault("client.id", "console-consumer")
    if isolation_level is not None:
        properties["isolation.level"] = isolation_level
    _auto_offset_reset(properties, selection.from_beginning)
    group_id = _group_id(group, properties)
    if group_id is not None and selection.partition is not None:
        raise UsageError("Options group and partition cannot be specified together.")
    schemas = _schemas(schema_registry, schema_registry_config)
    printer, start = printing.printer(schemas), selection.start
    client = options(bootstrap_server, properties=properties, known=names.CONSUMER)
    config = consumer_config(properties)

    async def consume(cluster: AsyncClient) -> None:
        topic, first, reading = selection.topic, start, config
        if topic is not None and await wait_until_created(cluster, topic, timeout_ms=timeout_ms):
            # The topic was created after this command began, so all of its records are new.
            first = EARLIEST if start == LATEST else start
            reading = dataclasses.replace(config, auto_offset_reset="earliest")
        member = group_config(group_id, properties) if group_id is not None else None
        async with _source(cluster, reading, selection, first, member) as source:
            await _print_all(source, printer, schemas, config, max_messages, timeout_ms, skip_message_on_error)

    try:
        run(client, consume)
    finally:
        if enable_systest_events:
            say("shutdown_complete")


def _schemas(url: str | None, file: Path | None) -> "SchemaReader | None":
    client = registry_client(url, file)
    if client is None:
        return None
    from barnabas.cli._schema_values import SchemaReader

    return SchemaReader(client)


def _group_id(given: str | None, properties: Mapping[str, str]) -> str | None:
    groups = {name for name in (given, properties.get("group.id")) if name}
    if len(groups) > 1:
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {', '.join(sorted(groups))}"
        )
    return next(iter(groups), None)


def _auto_offset_reset(properties: dict[str, str], from_beginning: bool) -> None:
    given = properties.get("auto.offset.reset")
    if given is not None and from_beginning and given != "earliest":
        raise UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={given}', please remove one option"
        )
    properties.setdefault("auto.offset.reset", "earliest" if from_beginning else "latest")


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
    selection: Selection,
    start: int | None,
    group: GroupConfig | None,
) -> AsyncIterator[Source]:
    topic, pattern = selection.topic, selection.include
    topics = [topic] if topic else []
    matching = (lambda name: matches(pattern, name)) if pattern else None
    if group is not None:
        async with GroupConsumer(cluster, group, topics=topics, matching=matching, config=config) as member:
            yield member
        return
    only = TopicPartition(topic, selection.partition) if topic and selection.partition is not None else None
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
    source: Source,
    printer: Formatter,
    schemas: "SchemaReader | None",
    config: ConsumerConfig,
    limit: int,
    timeout_ms: int,
    skip_errors: bool,
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
                if schemas is not None:
                    await schemas.prepare(_records(fetched, config))
                _print_one(source, fetched, printer, config, count, limit, skip_errors)
            out.flush()
            await asyncio.sleep(0)
    finally:
        sys.stderr.write(f"Processed a total of {count.messages} messages\n")


def _records(fetched: Fetched, config: ConsumerConfig) -> Iterator[Record]:
    for pos, header in fetched.visible_batches(isolation_level=config.isolation_level, check_crcs=config.check_crcs):
        yield from iter_records(fetched.data, pos, header)


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

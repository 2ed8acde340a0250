"""`barnabas console-share-consumer`: kafka-console-share-consumer.sh."""

import asyncio
import dataclasses
import sys
from collections.abc import Collection, Sequence
from typing import Final

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError, warn
from barnabas.cli._connection import options, run
from barnabas.cli._format import Formatter
from barnabas.cli._missing_topic import missing
from barnabas.cli._output import say
from barnabas.cli._parsing import pairs
from barnabas.cli.console_consumer import Printing
from barnabas.cli.tool import BOOTSTRAP, Option, Tool, at_most_one
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.settings import share_config
from barnabas.client.share_consumer import ShareConsumer, ShareRecord
from barnabas.client.share_session import AcknowledgementMode, AcknowledgeType
from barnabas.wire.records import Record

_GROUP: Final = "console-share-consumer"
#: How long one poll waits if there is no time-out.
_POLL_MS: Final = 1_000

TOOL = Tool(
    note="Records are accepted when they are printed. With `--timeout-ms` it ends with status 0.",
    kafka="kafka-console-share-consumer.sh",
    options=(
        BOOTSTRAP,
        Option("--topic", "The topic to consume. Required.", required=True),
        Option("--group", "The share group.", default=_GROUP),
        Option("--command-config", "Properties file with settings of the client.", metavar="FILE", name="config_file"),
        Option(
            "--command-property",
            "A setting of the consumer.",
            metavar="NAME=VALUE",
            many=True,
            also=("--consumer-property",),
        ),
        Option("--max-messages", "Stop after this many records.", int, default=-1),
        Option("--timeout-ms", "Stop when no record arrives for this long.", int, default=-1),
        Option("--release", "Release the records: they are delivered again.", bool),
        Option("--reject", "Reject the records: they are not delivered again.", bool),
        Option("--reject-message-on-error", "Reject what cannot be printed, and go on.", bool),
        Option("--formatter", "Default, NoOp or Logging.", metavar="CLASS", default="Default"),
        Option(
            "--formatter-property",
            "print.timestamp, print.key, print.offset, print.partition, print.delivery, print.epoch, print.headers, "
            "print.value, key.separator, line.separator, headers.separator, null.literal, key.deserializer, "
            "value.deserializer",
            metavar="NAME=VALUE",
            many=True,
            also=("--property",),
            name="property",
        ),
        Option("--formatter-config", "Properties file with properties of the formatter.", metavar="FILE"),
        Option("--key-deserializer", "String, Long, Integer, …, as Kafka names them.", metavar="CLASS"),
        Option("--value-deserializer", "The same for values.", metavar="CLASS"),
        Option("--enable-systest-events", "Print shutdown_complete at the end.", bool),
    ),
    rules=(at_most_one("--reject", "--release", says="At most one of --reject and --release may be specified."),),
    examples=(
        "barnabas console-share-consumer --topic orders",
        "barnabas console-share-consumer --topic orders --group mail --property print.delivery=true",
    ),
)


class _Deliveries:
    """The delivery counts of the records that are being printed."""

    def __init__(self) -> None:
        self.records: dict[tuple[TopicPartition, int], int] = {}

    def count(self, partition: TopicPartition, record: Record) -> int:
        return self.records[partition, record.offset]


@TOOL.main
def _consume(
    bootstrap_server: str | None,
    config_file: str | None,
    command_property: Sequence[str],
    topic: str,
    group: str,
    printing: Printing,
    max_messages: int,
    timeout_ms: int,
    release: bool,
    reject: bool,
    reject_message_on_error: bool,
    enable_systest_events: bool,
) -> None:
    properties = load_properties(config_file) if config_file else {}
    properties |= pairs(command_property, option="--command-property")
    properties.setdefault("client.id", _GROUP)
    if properties.get("group.id", group) != group and group != _GROUP:
        raise UsageError(f"--group is {group}, but group.id is {properties['group.id']}: name one share group")
    if properties.get("share.acknowledgement.mode", "explicit") != "explicit":
        raise UsageError(
            "share.acknowledgement.mode is always explicit here: each record is acknowledged when it is printed"
        )
    config = dataclasses.replace(
        share_config(properties.get("group.id", group), properties), acknowledgement_mode=AcknowledgementMode.EXPLICIT
    )
    deliveries = _Deliveries()
    printer = printing.printer(delivery_count=deliveries.count)
    client = options(bootstrap_server, properties=properties, known=names.SHARE_CONSUMER)
    kind = AcknowledgeType.RELEASE if release else AcknowledgeType.REJECT if reject else AcknowledgeType.ACCEPT

    async def consume(cluster: AsyncClient) -> None:
        why = await missing(cluster, topic)
        if why is not None:
            warn(f"{why}; waiting until it is created")
        async with ShareConsumer(cluster, config, topics=[topic], on_acknowledged=_complain) as consumer:
            loop = _Loop(consumer, printer, deliveries, kind, rejects_errors=reject_message_on_error)
            try:
                await loop.run(max_messages, timeout_ms)
            finally:
                sys.stderr.write(f"Processed a total of {loop.messages} messages\n")

    try:
        run(client, consume)
    finally:
        if enable_systest_events:
            say("shutdown_complete")


def _complain(partition: TopicPartition, offsets: Collection[int], code: ErrorCode) -> None:
    if code is not ErrorCode.NONE:
        warn(f"{len(offsets)} acknowledgements for {partition} failed, the records will come again: {code.name}")


class _Loop:
    def __init__(
        self,
        consumer: ShareConsumer,
        printer: Formatter,
        deliveries: _Deliveries,
        kind: AcknowledgeType,
        *,
        rejects_errors: bool,
    ) -> None:
        self._consumer = consumer
        self._printer = printer
        self._deliveries = deliveries
        self._kind = kind
        self._rejects_errors = rejects_errors
        self.messages = 0

    async def run(self, limit: int, timeout_ms: int) -> None:
        now_s = asyncio.get_running_loop().time
        arrived_s = now_s()
        while limit < 0 or self.messages < limit:
            records = await self._consumer.poll(_POLL_MS if timeout_ms < 0 else timeout_ms)
            if not records:
                if 0 <= timeout_ms <= (now_s() - arrived_s) * 1000:
                    return
                continue
            self._deliveries.records = {(each.partition, each.offset): each.delivery_count for each in records}
            for record in records:
                if 0 <= limit <= self.messages:
                    self._consumer.acknowledge(record, AcknowledgeType.RELEASE)
                else:
                    self._print(record)
            sys.stdout.buffer.flush()
            await self._consumer.commit()
            arrived_s = now_s()

    def _print(self, shown: ShareRecord) -> None:
        self.messages += 1
        kind = self._kind
        try:
            sys.stdout.buffer.write(self._printer(shown.partition, shown.header, shown.record))
        except (ValueError, Malformed) as error:
            if not self._rejects_errors:
                raise Malformed(f"{shown.partition} offset {shown.offset}: {error}") from None
            sys.stderr.write(f"rejected {shown.partition} offset {shown.offset}: {error}\n")
            kind = AcknowledgeType.REJECT
        self._consumer.acknowledge(shown, kind)

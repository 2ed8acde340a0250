"""`barnabas console-producer`: kafka-console-producer.sh."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._missing_topic import warn_of_creation
from barnabas.cli._parsing import pairs
from barnabas.cli._registry import REGISTRY, registry_client
from barnabas.cli.tool import BOOTSTRAP, Option, Tool
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import load_properties
from barnabas.client.errors import ClientError
from barnabas.client.producer import Batch, Headers, Producer, ProducerConfig
from barnabas.client.settings import producer_config

_READER_PROPERTIES: Final = (
    "parse.key",
    "key.separator",
    "parse.headers",
    "headers.delimiter",
    "headers.separator",
    "headers.key.separator",
    "null.marker",
    "ignore.error",
    "topic",
)


TOOL = Tool(
    note="Warns before its first record creates a topic. Unknown settings of the producer are refused.",
    kafka="kafka-console-producer.sh",
    options=(
        replace(BOOTSTRAP, also=("--broker-list",)),
        Option("--producer.config", "Properties file with settings of the client.", metavar="FILE", name="config_file"),
        Option("--producer-property", "A setting of the producer.", metavar="NAME=VALUE", many=True),
        Option("--topic", "The topic to produce to. Required.", required=True),
        Option("--sync", "Wait for each record before the next.", bool),
        Option(
            "--compression-codec", "none, gzip, snappy, lz4, zstd; gzip without a value.", metavar="NAME", alone="gzip"
        ),
        Option("--batch-size", "Bytes of a batch. [16384]", int, metavar="BYTES"),
        Option("--max-partition-memory-bytes", "As --batch-size.", int, metavar="BYTES"),
        Option("--max-memory-bytes", "Memory for records that are not sent yet. [33554432]", int, metavar="BYTES"),
        Option("--timeout", "How long to wait for more records before sending a batch. [1000]", int, metavar="MS"),
        Option("--request-required-acks", "0, 1, all or -1. [-1]"),
        Option("--request-timeout-ms", "How long to wait for an answer. [1500]", int, metavar="MS"),
        Option("--retry-backoff-ms", "How long to wait before a retry. [100]", int, metavar="MS"),
        Option("--metadata-expiry-ms", "When to ask for metadata again. [300000]", int, metavar="MS"),
        Option("--max-block-ms", "How long to wait for free memory. [60000]", int, metavar="MS"),
        Option(
            "--property",
            "parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, "
            "null.marker, ignore.error",
            metavar="NAME=VALUE",
            many=True,
        ),
        *REGISTRY,
        Option("--reader-config", "Properties file with properties of the line reader.", metavar="FILE"),
        Option("--line-reader", "Only Kafka's LineMessageReader.", metavar="CLASS"),
        Option(
            "--message-send-max-retries",
            kind=int,
            metavar="N",
            no_effect="the producer retries for delivery.timeout.ms",
        ),
        Option(
            "--socket-buffer-size",
            kind=int,
            metavar="BYTES",
            no_effect="the operating system sizes the buffers of sockets",
        ),
    ),
    examples=(
        "barnabas console-producer --topic orders",
        "barnabas console-producer --topic orders --property parse.key=true --property key.separator=:",
        "barnabas console-producer --topic orders --schema-registry http://localhost:8081",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Options that stand for settings of the producer."""

    compression_codec: str | None
    batch_size: int | None
    max_partition_memory_bytes: int | None
    max_memory_bytes: int | None
    timeout: int | None
    request_required_acks: str | None
    request_timeout_ms: int | None
    retry_backoff_ms: int | None
    metadata_expiry_ms: int | None
    max_block_ms: int | None

    def apply(self, properties: dict[str, str]) -> None:
        """Set what is given, and defaults of Kafka's tool that differ from the producer's."""
        of_partition = self.max_partition_memory_bytes
        merged: dict[str, tuple[object | None, str | None]] = {
            "compression.type": (self.compression_codec, None),
            "linger.ms": (self.timeout, "1000"),
            "acks": (self.request_required_acks, "-1"),
            "request.timeout.ms": (self.request_timeout_ms, "1500"),
            "retry.backoff.ms": (self.retry_backoff_ms, None),
            "buffer.memory": (self.max_memory_bytes, None),
            "batch.size": (of_partition if of_partition is not None else self.batch_size, None),
            "metadata.max.age.ms": (self.metadata_expiry_ms, None),
            "default.api.timeout.ms": (self.max_block_ms, None),
        }
        for name, (given, default) in merged.items():
            if given is not None:
                properties[name] = str(given)
            elif default is not None:
                properties.setdefault(name, default)


@TOOL.main
def _send(
    bootstrap_server: str | None,
    config_file: str | None,
    producer_property: Sequence[str],
    topic: str,
    sync: bool,
    tuning: Tuning,
    property_: Sequence[str],
    reader_config: str | None,
    schema_registry: str | None,
    schema_registry_config: Path | None,
    line_reader: str | None,
) -> None:
    if line_reader is not None and not line_reader.endswith("LineMessageReader"):
        raise UsageError(
            "--line-reader takes a Java class, which cannot be loaded here; lines are read as LineMessageReader does"
        )
    properties = load_properties(config_file) if config_file else {}
    properties |= pairs(producer_property, option="--producer-property")
    properties.setdefault("client.id", "console-producer")
    tuning.apply(properties)
    reader = LineReader.of((load_properties(reader_config) if reader_config else {}) | _reader_pairs(property_))
    names.require_known(properties, names.PRODUCER, what="a producer")
    if (registry := registry_client(schema_registry, schema_registry_config)) is not None:
        from barnabas.cli._schema_values import schema_writer

        reader.encode_value = schema_writer(registry, f"{topic}-value", is_needed=True) or _as_it_is
        if reader.parse_key:
            reader.encode_key = schema_writer(registry, f"{topic}-key", is_needed=False) or _as_it_is
    client = options(bootstrap_server, properties=properties, known=names.PRODUCER)
    config = producer_config(properties)
    run(client, lambda cluster: _produce(cluster, topic, reader, config, sync))


def _reader_pairs(items: Sequence[str]) -> dict[str, str]:
    """Like `pairs`, but separators keep their blanks."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--property {item}: it must be in the format key=value")
        found[key.strip()] = value
    return found


async def _produce(cluster: AsyncClient, topic: str, reader: "LineReader", config: ProducerConfig, sync: bool) -> None:
    from barnabas.cli._stdin import stdin_lines

    failures: list[str] = []
    watched: set[Batch] = set()

    def report(batch: Batch) -> None:
        watched.discard(batch)
        error = batch.done.exception()
        if error is not None:
            failures.append(str(error))
            sys.stderr.write(f"error: {len(batch.records)} records for {batch.partition} were not sent: {error}\n")

    await warn_of_creation(cluster, topic)
    async with Producer(cluster, config) as producer:
        try:
            async for line in stdin_lines(prompt=">"):
                try:
                    key, value, headers = reader.parse(line)
                except UsageError:
                    await producer.flush()  # as Kafka's tool: send the lines that were read before
                    raise
                delivery = await producer.send(topic, value, key=key, headers=headers)
                if sync:
                    await producer.flush()
                    await delivery.offset()
                elif delivery.batch not in watched:
                    batch = delivery.batch
                    watched.add(batch)
                    batch.done.add_done_callback(lambda _, batch=batch: report(batch))  # type: ignore[misc]
        except asyncio.CancelledError:
            await producer.flush()  # Ctrl-C: send what was typed, as Kafka's tool does
            raise
    if failures:
        raise ClientError(f"{len(failures)} batches were not sent; the last: {failures[-1]}")


def _as_it_is(data: bytes) -> bytes:
    return data


@dataclass(slots=True)
class LineReader:
    """Kafka's LineMessageReader: reads headers, key and value from one line."""

    parse_key: bool = False
    parse_headers: bool = False
    ignore_error: bool = False
    key_separator: bytes = b"\t"
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    line_number: int = 0
    #: By the schemas of a registry.
    encode_key: Callable[[bytes], bytes] = _as_it_is
    encode_value: Callable[[bytes], bytes] = _as_it_is

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "LineReader":
        for name in properties:
            if name not in _READER_PROPERTIES:
                raise UsageError(
                    f"--property {name} is not a property of the line reader{did_you_mean(name, _READER_PROPERTIES)}"
                )

        def flag(name: str) -> bool:
            return properties.get(name, "").strip().lower() == "true"

        def text(name: str, default: bytes) -> bytes:
            return properties[name].encode() if name in properties else default

        reader = cls(
            parse_key=flag("parse.key"),
            parse_headers=flag("parse.headers"),
            ignore_error=flag("ignore.error"),
            key_separator=text("key.separator", b"\t"),
            headers_delimiter=text("headers.delimiter", b"\t"),
            headers_separator=text("headers.separator", b","),
            headers_key_separator=text("headers.key.separator", b":"),
            null_marker=properties["null.marker"].encode() if "null.marker" in properties else None,
        )
        reader._check()
        return reader

    def _check(self) -> None:
        named = [
            ("headers.delimiter", self.headers_delimiter),
            ("headers.separator", self.headers_separator),
            ("headers.key.separator", self.headers_key_separator),
        ]
        for index, (name, value) in enumerate(named):
            for other, same in named[index + 1 :]:
                if value == same:
                    raise UsageError(f"{name} and {other} may not be equal")
        for name, value in [("key.separator", self.key_separator), *named]:
            if not value:
                raise UsageError(f"{name} may not be empty")
            if value == self.null_marker:
                raise UsageError(f"null.marker and {name} may not be equal")

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None, Headers]:
        """Return (key, value, headers)."""
        self.line_number += 1
        headers, rest = self._cut(self.parse_headers, line, line, self.headers_delimiter, "headers delimiter")
        key, rest = self._cut(self.parse_key, line, rest, self.key_separator, "key separator")
        return (
            self._encoded(self.encode_key, "key", key),
            self._encoded(self.encode_value, "value", rest),
            self._headers(headers) if headers is not None and headers != self.null_marker else (),
        )

    def _cut(self, wanted: bool, line: bytes, rest: bytes, separator: bytes, name: str) -> tuple[bytes | None, bytes]:
        if not wanted:
            return None, rest
        before, found, after = rest.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            return None, rest
        raise UsageError(f"No {name} found on line number {self.line_number}: '{line.decode(errors='replace')}'")

    def _headers(self, text: bytes) -> Headers:
        headers: list[tuple[str, bytes | None]] = []
        for pair in text.split(self.headers_separator):
            name, found, value = pair.partition(self.headers_key_separator)
            if not found and not self.ignore_error:
                raise UsageError(
                    f"No header key separator found in pair '{pair.decode(errors='replace')}' "
                    f"on line number {self.line_number}"
                )
            if found and name == self.null_marker:
                raise UsageError("Header keys should not be equal to the null marker as they can't be null")
            headers.append((name.decode(errors="surrogateescape"), self._null(value) if found else None))
        return headers

    def _encoded(self, encode: Callable[[bytes], bytes], what: str, field: bytes | None) -> bytes | None:
        field = self._null(field)
        try:
            return None if field is None else encode(field)
        except UsageError as error:
            raise UsageError(f"line {self.line_number}: the {what} is {error}") from None

    def _null(self, field: bytes | None) -> bytes | None:
        return None if field == self.null_marker else field
